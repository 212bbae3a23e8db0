"""The command ``mama broker``: its configuration and its security."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.cli.main import main
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.broker.session.settings import Overflow
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.commands.broker import serve
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]


class Process:
    """``mama broker`` as a process of its own."""

    def __init__(self, *words: str, cwd: Path) -> None:
        command = [sys.executable, "-u", "-m", "mama_spark.cli", "broker", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[1] if self.line.startswith("ready: ") else ""

    def end(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_the_broker_is_ready_when_it_says_so_and_ends_in_order(tmp_path: Path) -> None:
    conf = tmp_path / "broker.toml"
    conf.write_text(f'[[stream]]\npattern = "^orders$"\nengine = "durable"\nfolder = "{tmp_path / "streams"}"\n')
    broker = Process("--bind", "tcp://127.0.0.1:*", "--conf-file", str(conf), cwd=tmp_path)
    assert "^orders$ durable, others simple; security: none" in broker.line
    with MalamuteClient(broker.url, "c", timeout=PATIENCE) as client:
        client.write("orders")
        client.send("x", b"1")
        assert client.sync() == (AckRun(StoreOutcome.STORED, 1, 1),)
    assert broker.end(signal.SIGTERM) == 0


def test_a_port_that_is_taken_and_a_wrong_file_are_exit_code_2(tmp_path: Path, capsys: Any) -> None:
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as other:
        assert main(["broker", "--bind", other.endpoint]) == 2
        assert "cannot bind tcp://127.0.0.1:" in capsys.readouterr().err
    wrong = tmp_path / "broker.toml"
    wrong.write_text("[broker]\nbid = 1\n")
    assert main(["broker", "--conf-file", str(wrong)]) == 2
    assert "unknown key 'bid'; did you mean 'bind'?" in capsys.readouterr().err


def test_a_broker_that_dies_ends_the_command(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from mama_spark.malamute.broker.session.state_machine import ServerMachine

    def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ServerMachine, "next_expiry", defect)
    with pytest.raises(BackgroundTaskFailed, match="the broker ended"):
        serve("tcp://127.0.0.1:*", stop=threading.Event(), say=lambda text: None)
    assert "a defect" in caplog.text


# --- the file ------------------------------------------------------------------------------------------------------


def test_keys_that_are_commented_out_are_known_and_show_their_defaults(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "broker.toml").read_text()
    skipped = re.compile(r'curve_|spark = |max_bytes = |warn = |mama broker|\$\{NAME\}|"10s"|metrics = |report =')
    lines = [
        line[2:] if re.match(r"# (\S+ = |\[\[)", line) and not skipped.search(line) else line
        for line in text.splitlines()
    ]
    conf = tmp_path / "broker.toml"
    conf.write_text("\n".join(lines))
    plain = BrokerSettings()
    for found in (load(ROOT / "conf" / "broker.toml"), load(conf)):
        assert (found.machine, found.max_message, found.high_water, found.linger, found.bind, found.security) == (
            plain.machine, plain.max_message, plain.high_water, plain.linger, plain.bind, plain.security
        )  # fmt: skip
    events, shown, shared = found.engines
    assert (events.pattern, events.engine) == (b"^_MAMA_EVENTS$", "durable")
    assert events.settings == {"folder": "data/streams", "max_age": timedelta(days=7)}
    assert shown.settings["dedup_ids"] == 1_000_000
    assert (shared.engine, shared.settings["create"]) == ("jetstream", True)


def test_what_the_file_says_counts_and_bind_goes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "hush")
    conf = tmp_path / "broker.toml"
    conf.write_text(
        '[broker]\nbind = "tcp://*:1"\nmax_message = "1 MiB"\nlinger = "250ms"\n'
        '[clients]\ntimeout = 0\nqueue = 1000\noverflow = "disconnect"\n'
        '[mailboxes]\neach = "2KiB"\n[services]\ncount = 7\n[security.users]\nu = "${WORD}"\n'
    )
    found = load(conf, "tcp://*:2")
    assert (found.bind, found.max_message, found.linger) == ("tcp://*:2", 1 << 20, 0.25)
    assert load(conf, ["tcp://c:2"]).endpoints == ("tcp://c:2",)
    assert (found.machine.timeout, found.machine.queue, found.machine.overflow) == (0.0, 1000, Overflow.DISCONNECT)
    assert (found.machine.mailboxes.each, found.machine.services.count) == (2048, 7)
    assert found.security.users == {"u": "hush"}
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[brocker]\n", "unknown table .* did you mean 'broker'"),
        ("broker = 1\n", r"\[broker\] is a table"),
        ("[clients]\ntimeout = true\n", r"\[clients\] timeout must be a duration"),
        ("[clients]\nqueue = '1 MB'\n", "queue must be a number of bytes"),
        ("[clients]\noverflow = 'drop'\n", "overflow must be one of drop-newest"),
        ("[clients]\nstreams = 0\n", "must be from 1 to"),
        ("[broker]\nbind = []\n", "bind must be a text, or a list of texts"),
        ("[stream]\npattern = 'x'\n", r"tables \[\[stream\]\]"),
        ("[[stream]]\npattern = 'x'\n", "needs the texts pattern and engine"),
        ("[[stream]]\npattern = '('\nengine = 'simple'\n", "1: "),
        ("[[stream]]\npattern = 'x'\nengine = 'simpel'\n", "no stream engine 'simpel'"),
        ("[[stream]]\npattern = 'x'\nengine = 'durable'\n", "key folder is missing"),
        ("[security]\ncurve_secret_key = 'short'\n", "40 characters"),
        ("[security]\ncurve_clients = 'x'\n", "list of texts"),
        ("[security]\ncurve_clients = []\n", "needs the secret key"),
        ("[security.users]\nu = 1\n", "a password by user name"),
        ("[security.users]\nu = ''\n", "without a password"),
        ("[security.users]\nu = '${NO_SUCH_WORD}'\n", "NO_SUCH_WORD is not set"),
        ("=\n", "not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, error: str) -> None:
    conf = tmp_path / "broker.toml"
    conf.write_text(text)
    with pytest.raises(ConfigError, match=error):
        load(conf)
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


# --- security ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("ML-27", "T1", "C5", "C9")
def test_a_broker_from_a_file_with_a_login(tmp_path: Path, ends: ExitStack) -> None:
    conf = tmp_path / "broker.toml"
    conf.write_text('[broker]\nbind = "tcp://127.0.0.1:*"\n[security.users]\nreader = "r"\nwriter = "w"\n')
    broker = Process("--conf-file", str(conf), cwd=tmp_path)
    ends.callback(broker.end)
    assert "security: PLAIN" in broker.line
    reader = ends.enter_context(MalamuteClient(broker.url, "reader", timeout=PATIENCE, user="reader", password="r"))
    writer = ends.enter_context(MalamuteClient(broker.url, "writer", timeout=PATIENCE, user="writer", password="w"))
    reader.read("weather", "temp.*")
    writer.write("weather")
    for subject in ("rain.moscow", "temp.london"):
        writer.send(subject, b"4")
    got = reader.receive()
    assert (got.kind, got.address, got.sender, got.subject, got.content) == (
        "stream", "weather", "writer", "temp.london", (b"4",)
    )  # fmt: skip
    assert broker.end(signal.SIGINT) == 130


def test_security_that_cannot_be_is_refused() -> None:
    key = zmq.curve_keypair()[1].decode()
    for values in ({"users": {"u": "p"}, "curve_secret_key": key}, {"curve_secret_key": " " * 40}):
        with pytest.raises(ConfigError):
            Security(**values)
    assert Security().mechanism == "none"

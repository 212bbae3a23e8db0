"""The command ``mama broker``: its configuration, its security, and what survives when it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from mama_spark.cli.main import main
from mama_spark.contracts.bridge import Ack, EventKind
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import MalamuteBridge, MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.broker.session.settings import Overflow
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.commands.broker import serve
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, BatchHooks
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, messages_of
from mama_spark.testing.oracle import Outcome, conserve

from tests.support.malamute.broker_process import BrokerProcess

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


def durable(folder: Path) -> Path:
    conf = folder / "broker.toml"
    conf.write_text(f'[[stream]]\npattern = "^orders$"\nengine = "durable"\nfolder = "{folder / "streams"}"\n')
    return conf


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_broker_is_ready_when_it_says_so_and_ends_in_order(tmp_path: Path) -> None:
    broker = Process("--bind", "tcp://127.0.0.1:*", "--conf-file", str(durable(tmp_path)), cwd=tmp_path)
    assert "^orders$ durable, others simple; security: none" in broker.line
    with MalamuteClient(broker.url, "c", timeout=PATIENCE) as client:
        client.write("orders")
        client.send("x", b"1")
        ((outcome, count, first),) = [(run.outcome.name, run.count, run.first) for run in client.sync()]
        assert (outcome, count, first) == ("STORED", 1, 1)
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
    skipped = (
        "curve_",
        "spark = ",
        "max_bytes = ",
        "warn = ",
        "mama broker",
        "${NAME}",
        '"10s"',
        "metrics = ",
        "report =",
    )
    lines = [
        line[2:] if re.match(r"# (\S+ = |\[\[)", line) and not any(s in line for s in skipped) else line
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
    assert (found.machine.timeout, found.machine.queue, found.machine.overflow) == (0.0, 1000, Overflow.DISCONNECT)
    assert (found.machine.mailboxes.each, found.machine.services.count) == (2048, 7)
    assert found.security.users == {"u": "hush"}
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[brocker]\n", "unknown table .* did you mean 'broker'"),
        ("broker = 1\n", r"\[broker\] is a table"),
        ("[clients]\ntimeout = '1 week'\n", r"\[clients\] timeout must be"),
        ("[clients]\ntimeout = true\n", r"\[clients\] timeout must be a duration"),
        ("[clients]\nqueue = '1 MB'\n", "queue must be a number of bytes"),
        ("[clients]\noverflow = 'drop'\n", "overflow must be one of drop-newest"),
        ("[clients]\nstreams = 0\n", "must be from 1 to"),
        ("[broker]\nbind = 1\n", "must be a text"),
        ("[stream]\npattern = 'x'\n", r"tables \[\[stream\]\]"),
        ("[[stream]]\npattern = 'x'\n", "needs the texts pattern and engine"),
        ("[[stream]]\npattern = '('\nengine = 'simple'\n", "1: "),
        ("[[stream]]\npattern = 'x'\nengine = 'simpel'\n", "no stream engine 'simpel'"),
        ("[[stream]]\npattern = 'x'\nengine = 'durable'\n", "key folder is missing"),
        ("[[stream]]\npattern = 'x'\nengine = 'durable'\nfolder = 'f'\nmax_ages = 1\n", "did you mean 'max_age'"),
        ("[security]\ncurve_secret_key = 'short'\n", "40 characters"),
        ("[security]\ncurve_clients = 'x'\n", "list of texts"),
        ("[security]\ncurve_clients = []\n", "needs the secret key"),
        ("[security.users]\nu = 1\n", "a password by user name"),
        ("[security.users]\nu = ''\n", "without a password"),
        ("[security.users]\nu = '${NO_SUCH_WORD}'\n", "NO_SUCH_WORD is not set"),
        ("security = 1\n", "a password by user name"),
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
    cities = ("temp.moscow", "rain.moscow", "temp.chicago", "rain.chicago", "temp.london", "rain.london")
    for n, subject in enumerate(cities):
        writer.send(subject, b"%d" % n)
    got = [reader.receive() for _ in range(3)]
    assert [m.subject for m in got] == ["temp.moscow", "temp.chicago", "temp.london"]
    last = got[-1]
    assert (last.kind, last.address, last.sender, last.content) == ("stream", "weather", "writer", (b"4",))
    assert broker.end(signal.SIGINT) == 130


def test_security_that_cannot_be_is_refused() -> None:
    key = zmq.curve_keypair()[1].decode()
    for values in ({"users": {"u": "p"}, "curve_secret_key": key}, {"curve_secret_key": " " * 40}):
        with pytest.raises(ConfigError):
            Security(**values)
    assert Security().mechanism == "none"


# --- kill -9 -------------------------------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_when_the_broker_is_killed_in_mid_write(tmp_path: Path, ends: ExitStack) -> None:
    """Law 5 with the durable engine: SIGKILL twice, and every row is stored once, under the sequence it was told."""
    broker = ends.enter_context(BrokerProcess(tmp_path))
    bridge = MalamuteBridge(MalamuteSettings(ConnectionSettings((broker.url,)), "orders"))
    bridge.open()
    ends.callback(bridge.close)
    assert (bridge.capabilities.ack, bridge.capabilities.dedup) == (Ack.STORED, True)
    finished: list[FlightBatch] = []
    topics, payloads, size, rounds = ["a", "b"], {}, 1000, 8
    policy = WindowConfig(1000, 500, 5.0, RetryPolicy.doubling(0.05, 0.5, PATIENCE))

    def keep(block: FlightBatch) -> None:
        finished.append(block)
        payloads[id(block)] = messages_of(block)

    kinds: list[EventKind] = []
    publisher = BatchPublisher(
        bridge,
        policy,
        on_finished=keep,
        config=BatchConfig(outage_timeout=PATIENCE),
        hooks=BatchHooks(on_event=lambda event: kinds.append(event.kind)),
    )
    publisher.start()
    ends.callback(publisher.stop)
    for n in range(rounds):
        rows = [b"%d.%d" % (n, i) for i in range(size)]
        names = [topics[i % 2] for i in range(size)]
        publisher.put(MessageBatch.of(names, rows, None, [f"id-{n}-{i}" for i in range(size)]))
        if n in (2, 5):
            broker.kill()
            broker.start()
    publisher.drain()
    assert kinds.count(EventKind.DISCONNECTED) == kinds.count(EventKind.RECONNECTED) == 2
    outcomes = []
    for block in finished:
        batch: MessageBatch = payloads[id(block)]
        assert (block.state == FlightState.ACKED).all()
        for topic, payload, sequence in zip(
            batch.topics.to_pylist(), batch.payloads.to_pylist(), block.sequence.tolist(), strict=True
        ):
            outcomes.append(Outcome(topic, payload, "acked", False, sequence))
    reader = ends.enter_context(MalamuteClient(broker.url, "reader", timeout=PATIENCE))
    reader.read("orders", after=0)
    got = [reader.receive() for _ in range(size * rounds)]
    stored = [(m.sequence or -1, m.subject, b"".join(m.content)) for m in got]
    conserve(outcomes, stored, sent=size * rounds).raise_faults()
    assert np.all(np.diff([sequence for sequence, *_ in stored]) > 0)
    assert os.path.exists(tmp_path / "streams")

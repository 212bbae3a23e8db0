"""``mama mama-source`` over a stream of NATS: killed and started again, and what it refuses to start with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.bridges import log_bridge
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.cli import main
from mama_spark.commands.mama_source import read_dictionary, read_rules
from mama_spark.errors import ConfigError
from mama_spark.mama.messages.status import MsgStatus
from mama_spark.message import MessageBatch
from mama_spark.openmama_wire.protocol.market_data import MarketDataRequest, subscription_topic
from mama_spark.options import SubscribeOptions

from tests.live.openmama.test_market_data_live import ScriptedSubscriber
from tests.support.nats.nats_servers import Admin
from tests.support.openmama.network import naming, peer, url_of


def store(server: NatsServer, **values: float) -> None:
    bridge = log_bridge(SubscribeOptions.parse({"url": server.url, "stream": "QUOTES"}), 10.0)
    bridge.open()
    bridge.log("QUOTES").append(MessageBatch.of(["S.A"], [json.dumps(values).encode()]))
    bridge.close()


def started(*words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mama_spark.cli", "mama-source", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving QUOTES as S at oz://"), line
    return process


@pytest.mark.spec("OW21")
def test_a_server_that_is_killed_goes_on_with_its_numbers(nats_server: NatsServer, tmp_path: Path) -> None:
    with Admin(nats_server.url) as admin, naming() as names, peer(url_of(names)) as one:
        admin.create_stream("QUOTES", ["S.>"])
        store(nats_server, x=1.5)
        words = ("--from", f"{nats_server.url}/QUOTES", "--to", url_of(names), "--source", "S",
                 "--state", str(tmp_path / "state"))  # fmt: skip
        subscriber = ScriptedSubscriber(one)
        one.subscribe("S.A")
        topic, request = subscription_topic("S"), MarketDataRequest("A", 0, 0)
        process = started(*words)
        try:
            subscriber.ask(topic, request)
            subscriber.watched.until(lambda: (1, 1) in subscriber.numbers(), "the image arrives")
            process.kill()
            process.communicate(timeout=30)
            process = started(*words)
            before = len(subscriber.messages())
            store(nats_server, x=2.5)
            subscriber.watched.until(
                lambda: subscriber.messages()[-1].get("x") == 2.5, "an old subscriber gets it, unasked"
            )
            numbers = [number for _, number in subscriber.numbers()[before:]]
            assert numbers in ([2], [1, 2]), "what was not saved comes again with its number"
            assert len({m.get("MamaSenderId") for m in subscriber.messages()}) == 1
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
            assert (process.returncode, said.splitlines()[-1][:6]) == (0, "ended:")
        finally:
            process.kill()
            process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--source", "a.b"], "--source is one name without dots"),
        (["--source", "S", "--to", "zmq://127.0.0.1:1"], "--to needs incoming=tcp://host:port"),
        (["--source", "S", "--to", "x"], "--to"),
        (["--source", "S", "--dictionary", "/nowhere"], "--dictionary /nowhere"),
    ],
)
def test_what_it_cannot_start_with_is_named(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["mama-source", "--from", "nats://127.0.0.1:1/S", "--state", str(tmp_path / "s"), *words]) == 2
    assert text in capsys.readouterr().err


def test_rules_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('unknown = "wait"\n[refuse]\n"X*" = "NOT_ENTITLED"\n[groups]\nG = ["A", "B"]\n')
    rules = read_rules(file, read_dictionary(None))
    assert (rules.status_for("XY"), rules.unknown, rules.groups) == (MsgStatus.NOT_ENTITLED, None, {"G": ["A", "B"]})
    assert read_rules(None, []).unknown is MsgStatus.NOT_FOUND
    for text, words in (("x = 1", "only unknown"), ('unknown = "x"', "must be one of"), ("[groups]\nG = 1", "a list"),
                        ('[refuse]\nX = "OK"', "must be one of")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_rules(file, [])


def test_the_name_server_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsd", "-p", "70000"]) == 2
    assert "--port is from 0 to 65535" in capsys.readouterr().err
    assert main(["nsd", "-i", "*", "-p", "0"]) == 2
    assert "give --advertise HOST" in capsys.readouterr().err

"""``mama mama-source`` over a stream of NATS: killed and started again, and what it refuses to start with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from mama_spark.cli.main import main
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.discovery.discovery_rows import DiscoveryRowReader
from mama_spark.mama.messages.status import MsgStatus
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.commands.mama_source import read_rules
from mama_spark.openmama.wire.market_data import MarketDataRequest, subscription_topic
from mama_spark.options import DiscoveryOptions, SubscribeOptions
from mama_spark.registry import discovery_bridge, log_bridge
from mama_spark.testing.waiting import eventually

from tests.live.openmama.test_market_data_live import ScriptedSubscriber
from tests.support.flight_logs import rows
from tests.support.malamute.broker_process import BrokerHere
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


@pytest.mark.thorough
@pytest.mark.spec("OW21")
def test_a_server_that_is_killed_goes_on_with_its_numbers(nats_server: NatsServer, tmp_path: Path) -> None:
    with Admin(nats_server.url) as admin, naming() as names, peer(url_of(names)) as one:
        admin.create_stream("QUOTES", ["S.>"])
        store(nats_server, x=1.5)
        words = (f"{nats_server.url}/QUOTES", "--to", url_of(names), "--source", "S",
                 "--state", str(tmp_path / "state"), "--flight-log", str(tmp_path / "log"), "--announce")  # fmt: skip
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
            happened = [e for e, _, _ in logged(tmp_path / "log")]
            happened.remove("SUBSCRIBED")  # the old subscriber may be there before the record is read
            assert happened == ["create", "live", "onCreate", "onDestroy", "destroy"]
            announced = discovery_bridge(DiscoveryOptions.parse({"url": nats_server.url}))
            announced.open()
            shown = DiscoveryRowReader("nats", "b").image(announced.image())
            announced.close()
            assert ("S", "OFFLINE") in [(r.source_name, r.source_state) for r in shown]
        finally:
            process.kill()
            process.communicate(timeout=30)


@pytest.mark.spec("OW20")
def test_a_malamute_stream_is_served_and_its_publisher_is_seen(tmp_path: Path) -> None:
    """Events are in the flight log, and the source and its events in discovery."""
    events = f'[events]\nfolder = "{tmp_path / "events"}"'
    with BrokerHere(tmp_path / "broker", "^QUOTES$", events) as broker, naming() as names, peer(url_of(names)) as one:
        broker.store("QUOTES", MessageBatch.of(["S.A"], [b'{"x":1.5}']))
        process = started(
            f"{broker.url}/QUOTES", "--to", url_of(names), "--source", "S",
            "--state", str(tmp_path / "state"), "--flight-log", str(tmp_path / "log"), "--flight-log-every", "100ms",
            "--announce",
        )  # fmt: skip
        discovery = discovery_bridge(DiscoveryOptions.parse({"url": broker.url}))
        discovery.open()
        log = tmp_path / "log"
        try:
            eventually(lambda: ("onCreate", "S.A", None) in logged(log), "the first record is served")
            subscriber = ScriptedSubscriber(one)
            one.subscribe("S.A")
            subscriber.ask(subscription_topic("S"), MarketDataRequest("A", 0, 0))
            subscriber.watched.until(lambda: (1, 1) in subscriber.numbers(), "the image arrives")
            broker.store("QUOTES", MessageBatch.of(["S.A", "S.B"], [b'{"x":2.5}', b"no object"]))
            subscriber.watched.until(lambda: subscriber.messages()[-1].get("x") == 2.5, "the update arrives")
            subscriber.ask(subscription_topic("S"), MarketDataRequest("NONE", 0, 0))
            subscriber.watched.until(lambda: len(subscriber.messages()) == 3, "the refusal arrives")
            online = DiscoveryRowReader("malamute", "b").image(discovery.image())
            assert [(r.source_name, r.source_state) for r in online] == [("S", "ONLINE")]
            eventually(lambda: ("onNewRequest", "S.NONE", "NOT_FOUND") in logged(log), "events are in the flight log")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            happened = logged(log)
            assert [e for e in happened if e[1] is None] == [(e, None, None) for e in ("create", "live", "destroy")]
            assert happened[2:] == [
                *[(e, "S.A", None) for e in ("onCreate", "SUBSCRIBED", "onRequest")],
                ("onNewRequest", "S.NONE", "NOT_FOUND"), ("onDestroy", "S.A", None), ("destroy", None, None),
            ]  # fmt: skip
            start = discovery.initial_offset("earliest")
            changes = [c for block in discovery.read(start, discovery.latest_offset(start)) for c in block]
            shown = [DiscoveryRowReader("malamute", "b").row(c) for c in changes]
            assert [
                (r.event, r.topic, r.status) for r in shown if r.source_name == "S" and r.kind != "source"
            ] == happened
            assert [r.event for r in shown if r.kind == "source"][-1] == "offline"
        finally:
            discovery.close()
            process.kill()
            process.communicate(timeout=30)


def logged(table: Path) -> list[tuple[str, str | None, str | None]]:
    """Event, topic and status of the rows of a flight log."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return [(row["event"], row["topic"], row["status"]) for row in rows(table)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--source", "S", "--storage", "a=b"], "--storage is for --flight-log"),
        (["--source", "S", "--announce", "oz://127.0.0.1:1"], "has no source discovery"),
        (["--source", "a.b"], "--source is one name without dots"),
        (["--source", "S", "--to", "zmq://127.0.0.1:1"], "--to needs incoming=tcp://host:port"),
        (["--source", "S", "--to", "x"], "--to"),
        (["--source", "S", "--dictionary", "/nowhere"], "--dictionary /nowhere"),
    ],
)
def test_what_it_cannot_start_with_is_named(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["mama-source", "nats://127.0.0.1:1/S", "--state", str(tmp_path / "s"), *words]) == 2
    assert text in capsys.readouterr().err


def test_rules_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('unknown = "wait"\n[refuse]\n"X*" = "NOT_ENTITLED"\n[groups]\nG = ["A", "B"]\n')
    rules = read_rules(file, [])
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

"""Name server, recorders and ``mama mama-source`` as processes: killed, and back again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
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
from tests.support.openmama.network import Watched, naming, peer, url_of
from tests.support.openmama.recorder import NatsRecordedLog, basic
from tests.support.ports import lasting_port


@contextmanager
def mama(until: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has said so; killed at the end, if it has not ended."""
    process = subprocess.Popen([sys.executable, "-m", "mama_spark.cli", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if until in line:
                break
        else:
            raise AssertionError(f"mama {' '.join(words)} ended")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.thorough
@pytest.mark.spec("OW12", "OW29")
def test_a_recorder_that_is_killed_tells_what_it_missed_and_another_one_has_everything(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    port = lasting_port()
    url = f"oz://127.0.0.1:{port}"
    with ExitStack() as here:
        here.enter_context(mama("name server at", "nsd", "-p", str(port)))
        words = ("record", "--url", url, "--topic", "OM.A", "-o", "createStream=true", "--to")
        first = here.enter_context(ExitStack())
        first.enter_context(mama("ready", *words, f"{nats_server.url}/ONE"))
        conf = tmp_path / "two.toml"
        conf.write_text('[recorder]\nname = "other"\nprefix = "other"\n')
        here.enter_context(mama("ready", *words, f"{nats_server.url}/TWO", "--conf-file", str(conf)))
        one, two = NatsRecordedLog(nats_server, "ONE"), NatsRecordedLog(nats_server, "TWO")
        here.callback(one.close)
        here.callback(two.close)
        mine = here.enter_context(peer(url))
        watched = Watched(mine)

        def both_there() -> bool:
            return mine.readers.readers(b"OM.A\0") == 2

        watched.until(both_there, "both recorders subscribe")
        assert not mine.wanted("OM.AB"), "a neighbour of the topic"
        all_ = list(range(1, 101))
        for number in all_:
            assert mine.publish("OM.A", basic(number))
        eventually(lambda: one.numbers("OM.A") == two.numbers("OM.A") == all_, "two recorders have everything")

        first.close()  # killed
        watched.until(lambda: mine.readers.readers(b"OM.A\0") == 1, "one recorder is away")
        for number in range(101, 111):
            assert mine.publish("OM.A", basic(number))
        here.enter_context(mama("ready", *words, f"{nats_server.url}/ONE"))
        watched.until(both_there, "it is back")
        assert mine.publish("OM.A", basic(111))
        eventually(lambda: one.numbers("OM.A")[-1] == two.numbers("OM.A")[-1] == 111, "it goes on")
        assert [(g["gap_from"], g["gap_to"], g["cause"]) for g in one.rows("gap")] == [(101, 110, "away")]
        assert two.rows("gap") == []


# --- ``mama mama-source`` over a stream of NATS: killed and started again, and what it refuses to start with ----------


SERVING = "serving QUOTES as S at oz://"


def store(server: NatsServer, **values: float) -> None:
    bridge = log_bridge(SubscribeOptions.parse({"url": server.url, "stream": "QUOTES"}), 10.0)
    bridge.open()
    bridge.log("QUOTES").append(MessageBatch.of(["S.A"], [json.dumps(values).encode()]))
    bridge.close()


@pytest.mark.thorough
@pytest.mark.spec("OW21")
def test_a_server_that_is_killed_goes_on_with_its_numbers(nats_server: NatsServer, tmp_path: Path) -> None:
    with Admin(nats_server.url) as admin, naming() as names, peer(url_of(names)) as one:
        admin.create_stream("QUOTES", ["S.>"])
        store(nats_server, x=1.5)
        words = ("mama-source", f"{nats_server.url}/QUOTES", "--to", url_of(names), "--source", "S",
                 "--state", str(tmp_path / "state"))  # fmt: skip
        subscriber = ScriptedSubscriber(one)
        with mama(SERVING, *words):
            subscriber.subscribe("A")
            subscriber.watched.until(lambda: (1, 1) in subscriber.numbers(), "the image arrives")
        with mama(SERVING, *words) as process:  # the one before was killed
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


@pytest.mark.spec("OW20")
def test_a_malamute_stream_is_served_and_its_publisher_is_seen(tmp_path: Path) -> None:
    """Events are in the flight log, and the source and its events in discovery."""
    events = f'[events]\nfolder = "{tmp_path / "events"}"'
    log = tmp_path / "log"
    with BrokerHere(tmp_path / "broker", "^QUOTES$", events) as broker, naming() as names, peer(url_of(names)) as one:
        broker.store("QUOTES", MessageBatch.of(["S.A"], [b'{"x":1.5}']))
        words = (
            "mama-source", f"{broker.url}/QUOTES", "--to", url_of(names), "--source", "S", "--state",
            str(tmp_path / "state"), "--flight-log", str(log), "--flight-log-every", "100ms", "--announce",
        )  # fmt: skip
        discovery = discovery_bridge(DiscoveryOptions.parse({"url": broker.url}))
        discovery.open()
        with mama(SERVING, *words) as process, closing(discovery):
            eventually(lambda: ("onCreate", "S.A", None) in logged(log), "the first record is served")
            subscriber = ScriptedSubscriber(one)
            subscriber.subscribe("A")
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
            shown = list(map(DiscoveryRowReader("malamute", "b").row, changes))
            told = [(r.event, r.topic, r.status) for r in shown if r.source_name == "S" and r.kind != "source"]
            assert told == happened
            assert [r.event for r in shown if r.kind == "source"][-1] == "offline"


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

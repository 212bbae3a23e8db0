"""The engine over NATS JetStream passes the suites for engines; outages, several engines, and clients of NATS."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines.jetstream import engine, publisher
from mama_spark.malamute.broker.engines.jetstream.engine import JetStreamEngine
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, StoreOutcome
from mama_spark.malamute.testing.driven_stream import TIMEOUT
from mama_spark.malamute.testing.engine_suite import EngineKind, ReadableEngineSuite
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.malamute.stored_engine_suite import MakeEngine, StoredEngineHarness, StoredEngineSuite, numbered
from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_servers import Admin

Make = Callable[..., StoredEngineHarness]


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[NatsServer]:
    with account(nats_accounts, config="max_payload: 16MB") as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow and not away is waited for."""
    monkeypatch.setattr(engine, "BARRIER", TIMEOUT)


_names = itertools.count()


@pytest.fixture
def settings(server: NatsServer) -> dict[str, Any]:
    """A stream of the test's own, in memory."""
    name = f"t{next(_names)}"
    return {"servers": server.url, "stream": name, "subjects": name, "storage": "memory"}


@pytest.fixture
def engines(settings: dict[str, Any]) -> Iterator[Make]:
    made: list[StoredEngineHarness] = []

    def make(**more: Any) -> StoredEngineHarness:
        name = more.pop("name", b"st")
        made.append(StoredEngineHarness(JetStreamEngine(name, {**settings, **more})))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


class TestJetStream(ReadableEngineSuite):
    @pytest.fixture
    def kind(self, settings: dict[str, Any]) -> EngineKind:
        name = settings["stream"]
        mine = {"servers": settings["servers"], "stream": name + "-{stream}", "subjects": name + ".{stream}"}
        return EngineKind("jetstream", mine, stored=True)


class TestJetStreamStorage(StoredEngineSuite):
    @pytest.fixture
    def make(self, settings: dict[str, Any]) -> MakeEngine:
        return lambda: JetStreamEngine(b"st", settings)


# --- storing -----------------------------------------------------------------------------------------------------


def test_a_message_that_the_server_does_not_take_is_refused_and_the_others_are_stored(engines: Make) -> None:
    one = engines()
    one.engine.accept("w", b"", b"a", [b"x" * (16 << 20)], NO_EXTENSION)
    one.engine.accept("w", b"", b"b", [b"x"], NO_EXTENSION)
    one.engine.accept("w", b"", b"c", [b"x"], Extension(message_id=b"i" * 65_535))
    assert one.sync() == (
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.STORED, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
    )
    assert one.read(1) == [1]


# --- replay ------------------------------------------------------------------------------------------------------


def test_a_position_that_another_broker_told_is_not_behind_the_end(engines: Make) -> None:
    one, two = engines(), engines()
    assert two.read(0, client="other", after=None) == []
    one.publish(*numbered(50))
    assert two.read(10, after=40) == list(range(41, 51))


def test_more_readers_than_catch_up_at_once_take_turns(engines: Make) -> None:
    one = engines()
    one.publish(*numbered(20))
    for n in range(40):
        one.engine.compile(n, b"", 0)
    for n in range(40):
        assert one.taken(20, n) == list(range(1, 21))


def test_what_retention_took_from_a_reader_is_noted_and_the_rest_comes(
    engines: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")
    one = engines(max_messages=10)
    one.publish(*numbered(30))
    assert one.read(10, after=5) == list(range(21, 31))
    assert "messages 6 to 20" in caplog.text


# --- several engines, and other clients of NATS ------------------------------------------------------------------


def test_engines_over_one_stream_hear_each_other_in_one_order(engines: Make) -> None:
    one, two = engines(), engines()
    for each in (one, two):
        each.engine.compile("r", b"")
    for n in range(50):
        (one, two)[n % 2].engine.accept("w", b"w", b"%d" % n, [b""], NO_EXTENSION)
        (one, two)[n % 2].engine.flush()
    assert one.taken(50) == two.taken(50) == list(range(1, 51))


def test_streams_that_share_one_of_jetstream_do_not_hear_each_other(engines: Make, settings: dict[str, Any]) -> None:
    """Sequences have holes then, and a reader that is behind catches up all the same."""
    name = settings["stream"]
    with Admin(settings["servers"]) as admin:
        admin.create_stream(name, [f"{name}.>"])
    one, two = (engines(name=stream, subjects=name + ".{stream}") for stream in (b"a", b"a.b"))
    for n in range(10):
        (one, two)[n % 2].publish(b"%d" % n)
    assert one.read(5) == [1, 3, 5, 7, 9]
    assert two.read(3, after=5) == [6, 8, 10]
    two.publish(b"x")
    one.publish(b"y")
    assert (one.taken(1), two.taken(1)) == ([12], [11])
    assert isinstance(one.engine, JetStreamEngine)
    behind = one.engine._behind
    one.until(lambda: not behind)


@pytest.mark.spec("ML-15")
def test_a_client_known_by_its_address_does_not_get_its_messages_from_another_broker(engines: Make) -> None:
    """ML-15, as far as the record says who sent"""
    one, two = engines(), engines()
    two.engine.compile("r", b"")
    two.publish(b"1", client="r", address=b"alice")
    one.publish(b"2", address=b"alice")
    one.publish(b"3", address=b"bob")
    assert two.taken(1) == [3]
    one.publish(b"4", address=b"")
    assert two.taken(1) == [4], "nobody knows who that was"


def test_nats_clients_see_plain_subjects_payloads_and_headers_and_are_heard(
    engines: Make, settings: dict[str, Any]
) -> None:
    one = engines()
    extension = Extension(message_id=b"id-1", headers=((b"Mama-Root", b"r"),))
    one.engine.accept("w", b"alice", b"temp.moscow", [b"-3"], extension)
    one.sync()
    one.engine.compile("r", b"temp")
    name = settings["stream"]
    with Admin(settings["servers"]) as admin:
        (stored,) = admin.messages(name)
        assert (stored.topic, stored.payload) == (f"{name}.temp.moscow", b"-3")
        headers = {key: values for key, values in stored.headers.items() if key != "Mlp-Origin"}
        assert headers == {"Nats-Msg-Id": ["id-1"], "Mlp-Sender": ["alice"], "Mama-Root": ["r"]}

        async def publish() -> None:
            await admin._client.publish(f"{name}.temp.rome", b"20", headers={"k": "v"})
            await admin._client.flush()

        admin._run(publish())
    one.until(lambda: bool(one.got))
    (delivery,) = one.got
    assert (delivery.sender, delivery.subject, list(delivery.content)) == (b"", b"temp.rome", [b"20"])
    assert delivery.extension is not None
    assert delivery.extension.headers == ((b"k", b"v"),)


def test_an_outage_longer_than_ids_are_recognised_stores_once_what_was_on_the_way(
    engines: Make, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "ACK_TIMEOUT", 0.2)
    with NatsServer(tmp_path) as server, Admin(server.url) as admin:
        one = engines(servers=server.url, dedup_window="1s")
        one.publish(b"a")
        server.pause()
        for subject in (b"b", b"c"):
            one.engine.accept("w", b"", subject, [b""], NO_EXTENSION)
            one.engine.flush()
        forgotten = time.monotonic() + 3.0
        one.until(lambda: time.monotonic() >= forgotten)
        server.resume()
        assert isinstance(one.engine, JetStreamEngine)
        sender = one.engine.publisher
        one.until(lambda: not sender.busy)
        assert [stored.topic for stored in admin.messages(settings["stream"])] == [
            f"{settings['stream']}.{subject}" for subject in "abc"
        ]
        one.engine.close()


def test_a_stream_that_is_not_there_or_does_not_fit_is_named(engines: Make, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="there is no stream"):
        engines(create=False)
    with Admin(settings["servers"]) as admin:
        admin.create_stream(settings["stream"], ["elsewhere.>"])
    with pytest.raises(ConfigError, match="does not take"):
        engines()


def test_a_stream_that_is_deleted_ends_the_engine(engines: Make, settings: dict[str, Any]) -> None:
    one = engines()
    one.publish(b"a")
    one.engine.compile("r", b"")
    one.publish(b"b")
    assert one.taken(1) == [2]
    with Admin(settings["servers"]) as admin:
        admin.api(f"STREAM.DELETE.{settings['stream']}")
    with pytest.raises(ConfigError, match="stream not found"):
        one.until(lambda: False)

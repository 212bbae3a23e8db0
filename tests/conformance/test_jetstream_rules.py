"""The rules of stored streams for the engine over NATS JetStream: holding, replay, numbers, several engines."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.errors import ConfigError, Unavailable
from mama_spark.malamute.protocol.extensions import NOTHING, AckRun, Extension, StoreOutcome
from mama_spark.services.malamute_broker.engines import Delivery
from mama_spark.services.malamute_broker.engines.jetstream import async_publisher, engine
from mama_spark.services.malamute_broker.engines.jetstream.engine import JetStreamEngine

from tests.support.nats import account
from tests.support.nats_accounts import Accounts
from tests.support.nats_servers import Admin

PATIENCE = 60.0
Runs = tuple[AckRun, ...]


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[NatsServer]:
    with account(nats_accounts) as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow and not away is waited for."""
    monkeypatch.setattr(engine, "BARRIER", PATIENCE)


class EngineHarness:
    """One engine, called as its thread calls it, and what it delivered."""

    def __init__(self, name: bytes = b"st", **settings: Any) -> None:
        self.got: list[Delivery] = []
        self.engine = JetStreamEngine(name, settings)
        self.engine.start()
        self.engine.traffic(self.got.append)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"{self.engine}, {len(self.got)} delivered"
            time.sleep(self.engine.idle() or 0.0)

    def publish(self, *subjects: bytes, client: Hashable = "w", address: bytes = b"writer", ids: bool = False) -> Runs:
        """One batch; what became of it."""
        for subject in subjects:
            extension = Extension(message_id=subject) if ids else NOTHING
            self.engine.accept(client, address, subject, [b"x"], extension)
        return self.sync(client)

    def sync(self, client: Hashable = "w") -> Runs:
        outcome = self.engine.sync(client)
        assert callable(outcome)
        self.engine.flush()
        found: list[Runs] = []

        def told() -> bool:
            runs = outcome()
            found.extend([] if runs is None else [runs])
            return runs is not None

        self.until(told)
        return found[0]

    def taken(self, n: int, client: Hashable = "r") -> list[int]:
        """Sequences that this client got since the last time, once there are so many; and no more come soon."""
        self.until(lambda: sum(d.client == client for d in self.got) >= n)
        for _ in range(20):
            self.engine.idle()
        found = [d.extension.sequence or 0 for d in self.got if d.client == client and d.extension is not None]
        self.got[:] = [d for d in self.got if d.client != client]
        return found

    def read(self, n: int, after: int | None = 0, client: Hashable = "r", pattern: bytes = b"") -> list[int]:
        self.engine.compile(client, pattern, after)
        self.engine.flush()
        return self.taken(n, client)


_names = itertools.count()


@pytest.fixture
def settings(server: NatsServer) -> dict[str, Any]:
    """A stream of the test's own, in memory."""
    name = f"t{next(_names)}"
    return {"servers": server.url, "stream": name, "subjects": name, "storage": "memory"}


@pytest.fixture
def desk(settings: dict[str, Any]) -> Iterator[Callable[..., EngineHarness]]:
    made: list[EngineHarness] = []

    def make(**more: Any) -> EngineHarness:
        made.append(EngineHarness(**{**settings, **more}))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


def numbered(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(1, n + 1)]


# --- storing -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("ML-01", "ML-22")
def test_what_was_acknowledged_is_there_for_another_engine_and_numbers_go_on(
    desk: Callable[..., EngineHarness],
) -> None:
    one = desk()
    assert one.publish(b"a", b"b") == (AckRun(StoreOutcome.STORED, 2, 1),)
    two = desk()
    assert two.publish(b"c") == (AckRun(StoreOutcome.STORED, 1, 3),)
    assert two.read(3) == [1, 2, 3]


def test_an_id_is_stored_once_and_told_by_its_first_sequence(desk: Callable[..., EngineHarness]) -> None:
    one, two = desk(), desk()
    assert one.publish(b"a", b"b", ids=True) == (AckRun(StoreOutcome.STORED, 2, 1),)
    assert two.publish(b"b", b"c", ids=True) == (
        AckRun(StoreOutcome.DUPLICATE, 1, 2),
        AckRun(StoreOutcome.STORED, 1, 3),
    )
    assert two.read(3) == [1, 2, 3]


def test_sync_counts_what_came_before_it_and_no_more(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    accept, sync = one.engine.accept, one.engine.sync
    accept("a", b"", b"1", [], NOTHING)
    accept("b", b"", b"2", [], NOTHING)
    accept("a", b"", b"3", [], NOTHING)
    first = sync("a")
    accept("a", b"", b"4", [], NOTHING)
    accept("silent", b"", b"5", [])
    second, other = sync("a"), sync("b")
    answers = [outcome for outcome in (first, second, other) if callable(outcome)]
    one.engine.flush()
    one.until(lambda: all(outcome() is not None for outcome in answers))
    assert [outcome() for outcome in answers] == [
        (AckRun(StoreOutcome.STORED, 1, 1), AckRun(StoreOutcome.STORED, 1, 3)),
        (AckRun(StoreOutcome.STORED, 1, 4),),
        (AckRun(StoreOutcome.STORED, 1, 2),),
    ]
    assert one.sync("silent") == ()


def test_a_message_that_the_server_does_not_take_is_refused_and_the_others_are_stored(
    desk: Callable[..., EngineHarness],
) -> None:
    one = desk()
    one.engine.accept("w", b"", b"a", [b"x" * 2_000_000], NOTHING)
    one.engine.accept("w", b"", b"b", [b"x"], NOTHING)
    one.engine.accept("w", b"", b"c", [b"x"], Extension(message_id=b"i" * 65_535))
    assert one.sync() == (
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.STORED, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
    )
    assert one.read(1) == [1]


def test_live_and_replayed_are_alike(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.engine.compile("live", b"")
    extension = Extension(message_id=b"i\xff", headers=((b"k", b"1"), (b"k", b"2"), (b"\xff", b"")))
    for content in ([], [b""], [b"one", b"", b"three" * 1000]):
        one.engine.accept("w", b"sen\xffder", b"sub\xffject", content, extension if len(content) == 3 else NOTHING)
    one.sync()
    one.engine.compile("late", b"", 0)
    one.until(lambda: len(one.got) == 6)
    live, late = ([(*d[1:3], list(d.content), d.extension) for d in one.got if d.client == c] for c in ("live", "late"))
    assert live == late
    assert live[2][:3] == (b"sen\xffder", b"sub\xffject", [b"one", b"", b"three" * 1000])
    assert live[2][3] is not None
    assert (live[2][3].message_id, live[2][3].headers) == (b"i\xff", extension.headers)


# --- replay ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("ML-22")
def test_replay_begins_behind_a_position_and_goes_on_live(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.publish(*numbered(10))
    assert one.read(3, after=7) == [8, 9, 10]
    one.publish(*numbered(2))
    assert one.taken(2) == [11, 12]


def test_without_a_position_only_what_comes(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.publish(*numbered(10))
    one.engine.compile("r", b"")
    one.publish(b"x")
    assert one.taken(1) == [11]


def test_a_position_behind_the_end_is_the_end(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.publish(*numbered(3))
    assert one.read(0, after=1000) == []
    one.publish(b"x")
    assert one.taken(1) == [4]


def test_a_position_that_another_broker_told_is_not_behind_the_end(desk: Callable[..., EngineHarness]) -> None:
    one, two = desk(), desk()
    assert two.read(0, client="other", after=None) == []
    one.publish(*numbered(50))
    assert two.read(10, after=40) == list(range(41, 51))


@pytest.mark.spec("ML-25")
def test_a_second_pattern_replays_only_what_the_first_did_not_deliver(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.engine.compile("r", b"^1")
    one.publish(*numbered(12))
    assert one.taken(4) == [1, 10, 11, 12]
    assert one.read(1, after=0, pattern=b"[12]$") == [2]
    one.publish(b"12", b"x", b"2")
    assert one.taken(2) == [13, 15]


@pytest.mark.spec("ML-15")
def test_own_messages_do_not_come_back_by_replay_either(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.engine.compile("r", b"")
    one.engine.credit("r", 0)
    one.publish(b"1", client="w")
    one.publish(b"2", client="r")
    one.publish(b"3", client="w")
    one.engine.credit("r", 10)
    assert one.taken(2) == [1, 3]
    assert one.read(3, client="other") == [1, 2, 3]


def test_a_large_stream_is_replayed_with_little_credit_at_a_time(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.publish(*numbered(3000))
    one.engine.compile("r", b"", 0)
    one.engine.credit("r", 0)
    found: list[int] = []
    while len(found) < 3000:
        one.engine.credit("r", 250)
        got = one.taken(250)
        assert len(got) == 250
        found += got
    assert found == list(range(1, 3001))


def test_more_readers_than_catch_up_at_once_take_turns(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.publish(*numbered(20))
    for n in range(40):
        one.engine.compile(n, b"", 0)
    for n in range(40):
        assert one.taken(20, n) == list(range(1, 21))


@pytest.mark.parametrize("seed", range(6))
def test_live_and_replay_meet_without_a_hole_or_a_double(desk: Callable[..., EngineHarness], seed: int) -> None:
    """Any mix of publishing, subscribing with and without position, credit and idleness."""
    dice = random.Random(seed)
    one = desk()
    names = [b"a", b"b", b"ab", b"c"]
    sent: list[tuple[bytes, str]] = []
    starts: dict[str, dict[bytes, int]] = {}
    for _ in range(60):
        who = dice.choice(["r", "s"])
        action = dice.randrange(6)
        if action <= 1:
            for _ in range(dice.randrange(4)):
                sender, subject = dice.choice(["w", "r"]), dice.choice(names)
                one.engine.accept(sender, b"", subject, [b""])
                sent.append((subject, sender if sender in starts else "w"))
        elif action == 2:
            pattern = dice.choice([b"a", b"b", b"^a$", b""])
            after = dice.choice([None, 0, dice.randrange(len(sent) + 1)])
            one.engine.compile(who, pattern, after)
            starts.setdefault(who, {}).setdefault(pattern, len(sent) if after is None else after)
        elif action == 3:
            one.engine.credit(who, dice.randrange(5))
        elif action == 4:
            one.engine.flush()
        else:
            one.engine.idle()
    for who in starts:
        one.engine.credit(who, 10_000)
    one.engine.flush()
    for who, patterns in starts.items():
        expected = [
            n
            for n, (subject, sender) in enumerate(sent, 1)
            if sender != who
            and any(
                n > after and (pattern == b"" or (subject == b"a" if pattern == b"^a$" else pattern in subject))
                for pattern, after in patterns.items()
            )
        ]
        assert sorted(one.taken(len(expected), who)) == expected, (seed, who)


def test_what_retention_took_from_a_reader_is_noted_and_the_rest_comes(
    desk: Callable[..., EngineHarness], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")
    one = desk(max_messages=10)
    one.publish(*numbered(30))
    assert one.read(10, after=5) == list(range(21, 31))
    assert "messages 6 to 20" in caplog.text


# --- credit ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("ML-07", "ML-21")
def test_nothing_goes_beyond_the_credit_and_the_rest_follows_in_order(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.engine.compile("r", b"")
    one.engine.credit("r", 2)
    one.publish(*numbered(5))
    assert one.taken(2) == [1, 2]
    one.engine.credit("r", 1)
    assert one.taken(1) == [3]
    one.engine.credit("r", 10)
    one.publish(b"x")
    assert one.taken(3) == [4, 5, 6]


def test_credit_that_was_taken_back_is_not_used(desk: Callable[..., EngineHarness]) -> None:
    one = desk()
    one.engine.compile("r", b"")
    one.engine.credit("r", 5)
    one.engine.credit("r", -5)
    one.publish(b"a")
    assert one.taken(0) == []
    one.engine.credit("r", None)
    assert one.taken(1) == [1]


# --- several engines, and other clients of NATS ------------------------------------------------------------------


def test_engines_over_one_stream_hear_each_other_in_one_order(desk: Callable[..., EngineHarness]) -> None:
    one, two = desk(), desk()
    for each in (one, two):
        each.engine.compile("r", b"")
    for n in range(50):
        (one, two)[n % 2].engine.accept("w", b"w", b"%d" % n, [b""], NOTHING)
        (one, two)[n % 2].engine.flush()
    assert one.taken(50) == two.taken(50) == list(range(1, 51))


def test_streams_that_share_one_of_jetstream_do_not_hear_each_other(
    desk: Callable[..., EngineHarness], settings: dict[str, Any]
) -> None:
    """Sequences have holes then, and a reader that is behind catches up all the same."""
    name = settings["stream"]
    with Admin(settings["servers"]) as admin:
        admin.create_stream(name, [f"{name}.>"])
    one, two = (desk(name=stream, subjects=name + ".{stream}") for stream in (b"a", b"a.b"))
    for n in range(10):
        (one, two)[n % 2].publish(b"%d" % n)
    assert one.read(5) == [1, 3, 5, 7, 9]
    assert two.read(3, after=5) == [6, 8, 10]
    two.publish(b"x")
    one.publish(b"y")
    assert (one.taken(1), two.taken(1)) == ([12], [11])
    one.until(lambda: not one.engine._behind)


@pytest.mark.spec("ML-15")
def test_a_client_known_by_its_address_does_not_get_its_messages_from_another_broker(
    desk: Callable[..., EngineHarness],
) -> None:
    """ML-15, as far as the record says who sent"""
    one, two = desk(), desk()
    two.engine.compile("r", b"")
    two.publish(b"1", client="r", address=b"alice")
    one.publish(b"2", address=b"alice")
    one.publish(b"3", address=b"bob")
    assert two.taken(1) == [3]
    one.publish(b"4", address=b"")
    assert two.taken(1) == [4], "nobody knows who that was"


def test_nats_clients_see_plain_subjects_payloads_and_headers_and_are_heard(
    desk: Callable[..., EngineHarness], settings: dict[str, Any]
) -> None:
    one = desk()
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


def test_an_outage_longer_than_ids_are_recognised_ends_the_engine_rather_than_guess(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on the way may be stored or not, and a resend could be stored twice."""
    with NatsServer(tmp_path) as server:
        one = EngineHarness(**{**settings, "servers": server.url, "dedup_window": 1})
        one.publish(b"a")
        monkeypatch.setattr(async_publisher, "ACK_TIMEOUT", 0.2)
        server.pause()
        one.engine.accept("w", b"", b"b", [b""], NOTHING)
        with pytest.raises(Unavailable, match="nobody can say whether it is stored"):
            one.until(lambda: False)
        monkeypatch.setattr(engine, "CLOSE_TIMEOUT", 0.1)
        one.engine.close()
        server.resume()


def test_what_waits_when_the_connection_is_lost_is_sent_once_it_is_back(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with NatsServer(tmp_path) as server:
        one = EngineHarness(**{**settings, "servers": server.url, "storage": "file"})
        one.engine.compile("r", b"")
        one.publish(b"a")
        server.kill()
        for n in range(100):
            one.engine.accept("w", b"", b"%d" % n, [b""], NOTHING)
            one.engine.flush()
        outcome = one.engine.sync("w")
        assert callable(outcome)
        assert outcome() is None, "nobody knows"
        server.start()
        one.until(lambda: outcome() is not None)
        assert outcome() == (AckRun(StoreOutcome.STORED, 100, 2),)
        assert one.taken(101) == list(range(1, 102))
        one.engine.close()


def test_a_stream_that_is_not_there_or_does_not_fit_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="stream not found"):
        EngineHarness(**settings, create=False)
    with Admin(settings["servers"]) as admin:
        admin.create_stream(settings["stream"], ["elsewhere.>"])
    with pytest.raises(ConfigError, match="does not take"):
        EngineHarness(**settings)


def test_a_stream_that_is_deleted_ends_the_engine(desk: Callable[..., EngineHarness], settings: dict[str, Any]) -> None:
    one = desk()
    one.publish(b"a")
    one.engine.compile("r", b"")
    one.publish(b"b")
    assert one.taken(1) == [2]
    with Admin(settings["servers"]) as admin:
        admin.api(f"STREAM.DELETE.{settings['stream']}")
    with pytest.raises(ConfigError, match="stream not found"):
        one.until(lambda: False)

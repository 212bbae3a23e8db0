"""The durable engine, called as by its thread: rules that the suite for stored streams does not cover."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from mama_spark.errors import ConfigError
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, StoreOutcome
from mama_spark.services.malamute_broker.engines import Delivery
from mama_spark.services.malamute_broker.engines.durable import engine as durable
from mama_spark.services.malamute_broker.engines.durable import store as durable_store
from mama_spark.services.malamute_broker.engines.durable.engine import DurableEngine
from mama_spark.services.malamute_broker.engines.durable.store import MessageStore
from mama_spark.services.malamute_broker.engines.durable.store_reader import StoreFull, StoreReader, store_path
from mama_spark.testing.stored_engine_suite import StoredEngineHarness, mix_live_and_replay, numbered

from tests.support.examples import examples

SECOND = 1_000_000


class EngineHarness:
    """One engine, and its deliveries.

    :ivar now: microseconds; that have passed, and the time of day but for ``set``
    :ivar set: microseconds by which somebody has set the clock of the day
    """

    def __init__(self, folder: Path, name: bytes = b"st", now: int = 1_700_000_000 * SECOND, **settings: Any) -> None:
        self.now, self.set = now, 0
        self.got: list[Delivery] = []
        self.engine = DurableEngine(name, {"folder": str(folder), **settings})
        self.engine._clock = lambda: self.now + self.set
        self.engine._ticks = lambda: self.now
        self.engine.start()
        self.engine.traffic(self.got.append)

    def publish(
        self, *subjects: bytes, client: Hashable = "w", ids: bool = False, content: bytes = b"x"
    ) -> tuple[AckRun, ...]:
        """Publish one batch; returns the outcomes."""
        for subject in subjects:
            self.engine.accept(
                client, b"writer", subject, [content], Extension(message_id=subject) if ids else NO_EXTENSION
            )
        return self.sync(client)

    def sync(self, client: Hashable = "w") -> tuple[AckRun, ...]:
        runs = self.engine.sync(client)
        self.engine.flush()
        return runs if isinstance(runs, tuple) else runs()

    def drain(self) -> None:
        """Call ``idle`` until the engine has nothing to do at this time."""
        while self.engine.idle() == 0.0:
            pass

    def taken(self, client: Hashable = "r") -> list[int]:
        """Sequences delivered to this client since the last call."""
        found = [d.extension.sequence or 0 for d in self.got if d.client == client and d.extension is not None]
        self.got[:] = [d for d in self.got if d.client != client]
        return found

    def read(self, after: int = 0, client: Hashable = "r", pattern: bytes = b"") -> list[int]:
        self.engine.compile(client, pattern, after)
        self.engine.flush()
        self.drain()
        return self.taken(client)


Make = Callable[..., "EngineHarness"]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Make]:
    made: list[EngineHarness] = []

    def make(**settings: Any) -> EngineHarness:
        made.append(EngineHarness(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


# --- storing -----------------------------------------------------------------------------------------------------


def test_times_never_fall_although_the_clock_does(engines: Make) -> None:
    one = engines()
    one.publish(b"a")
    one.set -= 100 * SECOND
    one.publish(b"b")
    one.engine.close()
    two = engines(now=one.now + one.set)
    two.publish(b"c")
    two.read()
    two.engine.compile("x", b"", 0)
    two.engine.flush()
    times = [d.extension.time for d in two.got if d.extension is not None]
    assert times == [one.now] * 3


# --- replay ------------------------------------------------------------------------------------------------------


def test_a_large_store_is_replayed_in_small_pieces_while_commands_go_on(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded, and messages published meanwhile follow in order."""
    monkeypatch.setattr(durable, "REPLAY_OCTETS", 20_000)
    one = engines()
    for _ in range(10):
        one.publish(*numbered(100), content=b"x" * 1000)
    one.engine.compile("r", b"", 0)
    found: list[int] = []
    published = 1000
    while not found or found[-1] < published:
        before = len(found)
        if len(found) < 500:
            one.publish(b"new", content=b"x" * 1000)
            published += 1
        else:
            one.engine.idle()
        found += one.taken()
        assert len(found) - before <= 21
    assert found == list(range(1, published + 1))


def test_readers_behind_take_turns(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "REPLAY_ROWS", 100)
    monkeypatch.setattr(durable, "TURN_ROWS", 60)
    one = engines()
    one.publish(*numbered(1000))
    for who in ("a", "b", "c"):
        one.engine.compile(who, b"", 0)
    for _ in range(3):
        one.engine.flush()
    counts = [len(one.taken(who)) for who in ("a", "b", "c")]
    assert min(counts) >= 60, counts


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_replay_and_live_delivery_have_no_gaps_or_duplicates(tmp_path: Path, seed: int) -> None:
    """Any mix of publishing, subscribing with and without position, credit and idleness."""
    one = StoredEngineHarness(DurableEngine(b"st", {"folder": str(tmp_path / str(seed))}))
    try:
        mix_live_and_replay(one, seed)
    finally:
        one.engine.close()


# --- credit ------------------------------------------------------------------------------------------------------


def test_a_slow_reader_costs_no_memory(engines: Make) -> None:
    one = engines()
    one.engine.compile("r", b"")
    one.engine.credit("r", 1)
    for _ in range(20):
        one.publish(*numbered(100), content=b"x" * 1000)
    assert one.taken() == [1]
    engine = one.engine
    assert (len(engine._accepted), len(engine._acks), len(engine._behind)) == (0, 0, 1)
    assert "1 behind" in repr(engine)


# --- ids ---------------------------------------------------------------------------------------------------------


def test_ids_are_known_after_a_restart_also_those_of_removed_messages(engines: Make) -> None:
    one = engines(max_messages=2)
    one.publish(*numbered(5), ids=True)
    one.engine.close()
    two = engines(max_messages=2)
    two.publish(b"6", ids=True)
    two.engine.close()
    three = engines(max_messages=2)
    assert three.publish(*numbered(7), ids=True) == (
        AckRun(StoreOutcome.DUPLICATE, 6, 1),
        AckRun(StoreOutcome.STORED, 1, 7),
    )


def test_an_id_counts_for_the_window_and_no_longer(engines: Make) -> None:
    one = engines(dedup_window=60, max_messages=1)
    one.publish(b"x", ids=True)
    one.now += 59 * SECOND
    assert one.publish(b"x", b"z", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    one.now += 2 * SECOND
    assert one.publish(b"x", ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)
    one.now += 61 * SECOND
    one.publish(b"later")
    with closing(sqlite3.connect(one.engine.store.path)) as db:
        assert db.execute("SELECT count(*) FROM ids").fetchone() == (0,), "the store forgets them too"


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_an_id_counts_for_the_window_although_the_clock_is_set(engines: Make, jump: int) -> None:
    one = engines(dedup_window=60, max_messages=1)
    one.publish(b"x", ids=True)
    one.set += jump * SECOND
    one.now += 59 * SECOND
    assert one.publish(b"x", b"z", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    one.now += 2 * SECOND
    assert one.publish(b"x", ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)


def test_an_id_of_a_clock_that_was_ahead_counts_for_the_window_and_no_longer(engines: Make) -> None:
    one = engines(dedup_window=60)
    one.publish(b"x", ids=True)
    one.engine.close()
    two = engines(dedup_window=60, now=one.now - 3600 * SECOND)
    assert two.publish(b"x", ids=True)[0].outcome is StoreOutcome.DUPLICATE
    two.now += 61 * SECOND
    assert two.publish(b"x", ids=True)[0].outcome is StoreOutcome.STORED


def test_no_more_ids_are_remembered_than_allowed(engines: Make) -> None:
    one = engines(dedup_ids=3)
    one.publish(*numbered(5), ids=True)
    assert [run.outcome for run in one.publish(b"5", b"1", ids=True)] == [StoreOutcome.DUPLICATE, StoreOutcome.STORED]
    assert len(one.engine._ids) <= 4


def test_a_window_of_nothing_switches_deduplication_off(engines: Make) -> None:
    one = engines(dedup_window=0)
    assert one.publish(b"x", b"x", ids=True) == (AckRun(StoreOutcome.STORED, 2, 1),)


# --- retention ---------------------------------------------------------------------------------------------------


def test_retention_by_count(engines: Make) -> None:
    one = engines(max_messages=10)
    for _ in range(3):
        one.publish(*numbered(7))
    assert one.read() == list(range(12, 22))


def test_retention_by_octets(engines: Make) -> None:
    one = engines(max_octets=1000)
    for _ in range(5):
        one.publish(*[b"s"] * 5, content=b"x" * 93)  # and the sender's 6
    assert one.read() == list(range(16, 26))
    one.publish(b"s", content=b"x" * 5000)
    assert one.read(client="later") == [26], "the newest stays, whatever its size"
    assert one.engine.store.octets == 5007


def test_retention_by_age_also_while_nothing_happens(engines: Make) -> None:
    one = engines(max_age=10)
    one.publish(*numbered(3))
    one.now += 8 * SECOND
    one.publish(*numbered(3))
    one.now += 4 * SECOND
    assert one.engine.idle() == 1.0
    assert one.read() == [4, 5, 6]
    one.now += 100 * SECOND
    one.drain()
    assert one.read(client="later") == [6], "the newest stays"


def test_a_new_limit_on_a_large_store_is_reached_in_steps(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_store, "MAX_REMOVED", 50)
    one = engines()
    one.publish(*numbered(500))
    one.engine.close()
    two = engines(max_messages=10)
    two.publish(b"x")
    assert two.engine.store.first == 51
    two.drain()
    assert two.read() == list(range(492, 502))


def test_replay_from_a_removed_position_begins_with_what_is_there(engines: Make) -> None:
    one = engines(max_messages=3)
    one.publish(*numbered(10))
    assert one.read(after=2) == [8, 9, 10]


def test_numbers_go_on_after_everything_was_removed(engines: Make) -> None:
    one = engines()
    one.publish(*numbered(3))
    one.engine.store.trim(100)
    one.engine.close()
    two = engines()
    assert two.publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 4),)


# --- failures ----------------------------------------------------------------------------------------------------


def test_on_a_full_disk_messages_are_refused_and_the_stream_lives(
    engines: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = engines()
    one.engine.compile("r", b"")
    one.publish(*numbered(2), ids=True)
    assert one.taken() == [1, 2]
    store = one.engine.store
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    assert one.publish(b"3", b"1", b"4", content=b"x" * 200_000, ids=True) == (
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.DUPLICATE, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
    )
    assert one.publish(b"3", content=b"x" * 200_000, ids=True) == (AckRun(StoreOutcome.REFUSED, 1),)
    assert one.taken() == [], "what is not stored is not delivered"
    assert caplog.text.count("refuses messages") == 1
    store._db.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert one.publish(b"3", content=b"x" * 200_000, ids=True) == (AckRun(StoreOutcome.STORED, 1, 3),)
    assert "stores again" in caplog.text
    assert one.taken() == [3]
    assert one.read(client="later") == [1, 2, 3]


def test_a_message_that_no_store_takes_is_refused_alone(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MAX_OCTETS", 100)
    one = engines()
    for content in (b"1", b"2" * 101, b"3"):
        one.engine.accept("w", b"", b"s", [content], NO_EXTENSION)
        one.engine.accept("silent", b"", b"s", [content])
    assert one.sync() == (
        AckRun(StoreOutcome.STORED, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.STORED, 1, 3),
    )
    assert one.read() == [1, 2, 3, 4]


def test_a_store_has_one_writer(engines: Make) -> None:
    one = engines()
    one.publish(b"a")
    with pytest.raises(ConfigError, match=r"st\.stream is open elsewhere"):
        engines()
    one.engine.close()
    assert engines().read() == [1]


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no database, but a text that somebody left here" * 1000)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")


def _cut_off(path: Path) -> None:
    engine = EngineHarness(path.parent)
    engine.publish(*numbered(200), content=b"x" * 1000)
    engine.engine.close()
    octets = path.read_bytes()
    path.write_bytes(octets[: len(octets) // 2])


def _overwritten(path: Path) -> None:
    engine = EngineHarness(path.parent)
    engine.publish(*numbered(200), content=b"x" * 1000)
    engine.engine.close()
    octets = bytearray(path.read_bytes())
    octets[100:60_000] = b"\xee" * 59_900
    path.write_bytes(octets)


def _without_state(path: Path) -> None:
    EngineHarness(path.parent).engine.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM state")
        db.commit()


@pytest.mark.parametrize("damage", [_garbage, _foreign, _cut_off, _overwritten, _without_state])
def test_a_damaged_or_foreign_store_is_an_error_that_names_it(
    tmp_path: Path, engines: Make, damage: Callable[[Path], None]
) -> None:
    path = store_path(tmp_path, b"st")
    damage(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=str(path)):
        engines()
    assert path.read_bytes() == before, "and is left as it is"


@pytest.mark.spec("ML-22")
@pytest.mark.parametrize("every", [1, 4, 1000])
def test_a_store_that_was_never_closed_counts_all_its_messages(
    tmp_path: Path, engines: Make, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Its state is written now and then, and later messages are counted."""
    monkeypatch.setattr(durable_store, "STATE_INTERVAL", every)
    one = engines(max_messages=12)
    for count in (3, 5, 1):
        one.publish(*numbered(count), content=b"x" * 100)
    _as_it_is(one, tmp_path / "early")
    one.publish(*numbered(6))
    one.engine.store.trim(10)
    one.publish(b"last")
    _as_it_is(one, tmp_path / "late")


def _as_it_is(one: EngineHarness, folder: Path) -> None:
    """A copy of the files in their current state, as after ``kill -9``."""
    store = one.engine.store
    shutil.copytree(store.path.parent, folder, ignore=shutil.ignore_patterns("*.lock*", "early"))
    reader = StoreReader(folder / store.path.name)
    assert reader.bounds() == (store.first, store.last)
    reader.close()
    again = MessageStore(folder / store.path.name, b"st")
    sizes = [sum(map(len, row[2:5])) for row in again.read(0, again.last, 100, 10**9)]
    assert (again.first, again.last, again.last_time, again.octets) == (
        store.first, store.last, store.last_time, sum(sizes)
    )  # fmt: skip
    assert store.octets == again.octets
    again.close()
    with closing(MessageStore(folder / store.path.name, b"st")) as closed:
        assert (closed.last, closed.octets) == (store.last, store.octets)


def test_the_store_of_another_stream_is_an_error(tmp_path: Path, engines: Make) -> None:
    engines().engine.close()
    store_path(tmp_path, b"st").rename(store_path(tmp_path, b"other"))
    with pytest.raises(ConfigError, match=r"other\.stream is the store of stream b'st'"):
        engines(name=b"other")


def test_what_died_while_it_was_made_is_made_again(tmp_path: Path, engines: Make) -> None:
    store_path(tmp_path, b"st").write_bytes(b"")
    assert engines().publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 1),)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be made"):
        EngineHarness(tmp_path / "file" / "below")


def test_any_name_of_a_stream_has_its_own_file(tmp_path: Path) -> None:
    names = [b"", b".", b"..", b"/etc/passwd", b"a/b", b"a%2Fb", b"\xff" * 255, b"\xff" * 254 + b"\xfe", b"%", b"A b"]
    paths = {store_path(tmp_path, name) for name in names}
    assert len(paths) == len(names)
    for name in names:
        assert store_path(tmp_path, name).parent == tmp_path
        one = EngineHarness(tmp_path, name=name)
        one.publish(b"x")
        one.engine.close()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"folder": ""}, "folder must be a text"),
        ({"max_bytes": 1}, "did you mean"),
        ({"zzz": 1}, "there are folder"),
        ({"max_age": 0}, "max_age must be a positive duration"),
        ({"max_messages": 1.5}, "max_messages must be a whole number"),
        ({"dedup_window": -1}, "dedup_window must be a duration"),
        ({"dedup_ids": True}, "dedup_ids"),
        ({"synchronous": "off"}, "one of normal, full"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        DurableEngine(b"st", {"folder": "somewhere", **wrong})
    assert "durable stream 'st'" in str(error.value)


def test_synchronous_full_waits_for_the_disk(engines: Make) -> None:
    for word, number in (("normal", 1), ("full", 2)):
        one = engines(synchronous=word)
        assert one.engine.store._db.execute("PRAGMA synchronous").fetchone() == (number,)
        one.publish(b"x")
        one.engine.close()


def test_trouble_while_reading_is_told_with_the_file(engines: Make) -> None:
    one = engines()
    one.publish(b"x")
    one.engine.store._db.execute("DROP TABLE messages")
    with pytest.raises(ConfigError, match=r"st\.stream cannot be used"):
        one.read()


def test_an_old_sqlite_is_named(monkeypatch: pytest.MonkeyPatch, engines: Make) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(ConfigError, match=r"need SQLite 3\.32 or later"):
        engines()


def test_full_is_for_the_publisher_to_try_again() -> None:
    assert StoreFull.retryable
    assert not StoreFull.may_have_landed

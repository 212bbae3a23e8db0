"""The durable engine where its disk is full, its store damaged or foreign, or its settings wrong."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines.durable import engine as durable
from mama_spark.malamute.broker.engines.durable import store as durable_store
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.engines.durable.store import MessageStore
from mama_spark.malamute.broker.engines.durable.store_reader import StoreFull, StoreReader, store_path
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, StoreOutcome
from mama_spark.malamute.protocol.log_query import LogQuery, Op

from tests.support.malamute.durable_engine import EngineHarness, Make
from tests.support.malamute.stored_engine_suite import numbered
from tests.support.tables import each


def test_on_a_full_disk_messages_are_refused_and_the_stream_lives(
    engines: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = engines()
    one.engine.compile("r", b"")
    one.publish(*numbered(2), ids=True)
    assert one.delivered() == [1, 2]
    store = one.engine.store
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    assert one.publish(b"3", b"1", b"4", content=b"x" * 200_000, ids=True) == (
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.DUPLICATE, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
    )
    assert one.publish(b"3", content=b"x" * 200_000, ids=True) == (AckRun(StoreOutcome.REFUSED, 1),)
    assert one.delivered() == [], "what is not stored is not delivered"
    assert caplog.text.count("refuses messages") == 1
    store._db.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert one.publish(b"5", b"3", content=b"x" * 200_000, ids=True) == (AckRun(StoreOutcome.STORED, 2, 3),)
    assert "stores again" in caplog.text
    assert one.delivered() == [3, 4]
    assert one.replayed(client="later") == [1, 2, 3, 4]


def test_a_message_that_no_store_takes_is_refused_alone(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MAX_BYTES", 100)
    one = engines()
    for content in (b"1", b"2" * 101, b"3"):
        one.engine.accept("w", b"", b"s", [content], NO_EXTENSION)
        one.engine.accept("silent", b"", b"s", [content])
    assert one.sync() == (
        AckRun(StoreOutcome.STORED, 1, 1),
        AckRun(StoreOutcome.REFUSED, 1),
        AckRun(StoreOutcome.STORED, 1, 3),
    )
    assert one.replayed() == [1, 2, 3, 4]


def test_a_store_has_one_writer(engines: Make) -> None:
    one = engines()
    one.publish(b"a")
    with pytest.raises(ConfigError, match=r"st\.stream is open elsewhere"):
        engines()
    one.engine.close()
    assert engines().replayed() == [1]


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no database, but a text that somebody left here" * 1000)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")


def _overwritten(path: Path) -> None:
    _cut_off(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xee" * 59_900)


def _cut_off(path: Path) -> None:
    engine = EngineHarness(path.parent)
    engine.publish(*numbered(200), content=b"x" * 1000)
    engine.engine.close()
    os.truncate(path, path.stat().st_size // 2)


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
    assert (again.first, again.last, again.last_time, again.stored_bytes) == (
        store.first, store.last, store.last_time, sum(sizes)
    )  # fmt: skip
    assert store.stored_bytes == again.stored_bytes
    again.close()
    with closing(MessageStore(folder / store.path.name, b"st")) as closed:
        assert (closed.last, closed.stored_bytes) == (store.last, store.stored_bytes)


def test_the_store_of_another_stream_is_an_error(tmp_path: Path, engines: Make) -> None:
    engines().engine.close()
    store_path(tmp_path, b"st").rename(store_path(tmp_path, b"other"))
    with pytest.raises(ConfigError, match=r"other\.stream is the store of stream b'st'"):
        engines(name=b"other")


def test_what_died_while_it_was_made_is_made_again_and_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, engines: Make
) -> None:
    store_path(tmp_path, b"st").write_bytes(b"")
    assert engines().publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 1),)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be made"):
        EngineHarness(tmp_path / "file" / "below")


def test_any_name_of_a_stream_has_its_own_file(tmp_path: Path) -> None:
    names = [b"", b".", b"..", b"/etc/passwd", b"a/b", b"a%2Fb", b"\xff" * 255, b"\xff" * 254 + b"\xfe", b"%", b"A b"]
    for name in names:
        assert store_path(tmp_path, name).parent == tmp_path
        one = EngineHarness(tmp_path, name=name)
        assert one.publish(b"x") == (AckRun(StoreOutcome.STORED, 1, 1),)
        one.engine.close()


@each(
    ("wrong", "text"),
    [
        ({"folder": ""}, "folder must be a text"), ({"max_byte": 1}, "did you mean"), ({"zzz": 1}, "there are folder"),
        ({"max_age": 0}, "max_age must be a positive duration"),
        ({"max_messages": 1.5}, "max_messages must be a whole number"),
        ({"dedup_window": -1}, "dedup_window must be a duration"), ({"dedup_ids": True}, "dedup_ids"),
        ({"synchronous": "off"}, "one of normal, full"),
    ],
)  # fmt: skip
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
        one.replayed()


def test_an_old_sqlite_is_named(monkeypatch: pytest.MonkeyPatch, engines: Make) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(ConfigError, match=r"need SQLite 3\.32 or later"):
        engines()


def test_what_passes_is_for_the_publisher_to_try_again(engines: Make) -> None:
    store, error = engines().engine.store, sqlite3.OperationalError("as the system says")
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT):
        error.sqlite_errorcode = code | 3 << 8  # an extended code
        found, passes = store._translation(error), code != sqlite3.SQLITE_CORRUPT
        assert (isinstance(found, StoreFull), found.retryable, found.may_have_landed) == (passes, passes, False)


def test_a_query_that_the_engine_does_not_know_is_answered_501_and_the_stream_lives(engines: Make) -> None:
    one = engines()
    answer, records = one.engine.ask(LogQuery(Op.NAMES, 7))
    assert (answer.number, answer.code, answer.reason, records) == (7, 501, b"this engine does not answer NAMES", [])
    assert one.publish(b"1", ids=True) == (AckRun(StoreOutcome.STORED, 1, 1),)

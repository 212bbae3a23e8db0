"""The log over a durable stream's store, against the suite that every log must pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.engines.durable.log import DurableLog, DurableLogs
from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.testing.log_suite import LogSetup, LogSuite, everything, numbers


class TestDurableLogs(LogSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> LogSetup:
        settings = {"folder": str(tmp_path)}
        engine = DurableEngine(b"st", settings)
        engine.start()
        engine.open_for_writing()
        engine.close()

        def fill(batch: MessageBatch) -> None:
            log = DurableLog("st", settings)
            log.append(batch)
            log.close()

        def delete(sequences: Sequence[int]) -> None:
            with closing(sqlite3.connect(store_path(tmp_path, b"st"))) as db:
                db.executemany("DELETE FROM messages WHERE sequence = ?", [(n,) for n in sequences])
                db.commit()

        return LogSetup(make=lambda: DurableLogs(settings), name="st", fill=fill, delete=delete)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[DurableEngine]:
    engine = DurableEngine(b"st", {"folder": str(tmp_path)})
    engine.start()
    engine.open_for_writing()
    yield engine
    engine.close()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[DurableLogs]:
    logs = DurableLogs({"folder": str(tmp_path)})
    yield logs
    logs.close()


def publish(engine: DurableEngine, *subjects: bytes, content: Sequence[bytes] = (b"x",)) -> None:
    for subject in subjects:
        engine.accept("w", b"", subject, content)
    engine.flush()


def test_a_log_is_read_while_a_broker_writes_it(engine: DurableEngine, logs: DurableLogs) -> None:
    publish(engine, b"a", b"b")
    log = logs.log("st")
    assert numbers(log.read(0, 100)) == [1, 2]
    publish(engine, b"c")
    assert log.bounds().last == 3
    batches = log.read(0, 100)
    publish(engine, b"d")
    assert numbers(batches) == [1, 2, 3, 4]


def test_an_unfinished_read_does_not_stop_the_writer(engine: DurableEngine, logs: DurableLogs) -> None:
    publish(engine, *[b"s"] * 10_000)
    batches = logs.log("st").read(0, 10_000)
    assert next(batches).sequences[0] == 1
    publish(engine, b"more")
    engine.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert store_path(Path(engine.settings["folder"]), b"st").with_suffix(".stream-wal").stat().st_size == 0
    assert len(everything(batches)) == 10_000 - 4096


def test_what_needs_the_store_alone_is_refused_while_a_broker_has_it(engine: DurableEngine, logs: DurableLogs) -> None:
    publish(engine, b"a")
    log = logs.log("st")
    with pytest.raises(ConfigError, match="is open elsewhere"):
        log.append(MessageBatch.of(["a"], [b""]))
    with pytest.raises(ConfigError, match="is open elsewhere"):
        log.trim(1)


def test_names_are_those_of_the_streams(tmp_path: Path, logs: DurableLogs) -> None:
    for name in (b"", b"b/c", b"a", b"\xff"):
        engine = DurableEngine(name, {"folder": str(tmp_path)})
        engine.start()
        engine.open_for_writing()
        engine.close()
    assert logs.names([]) == logs.names(["any.>"]) == ["", "a", "b/c"]
    assert logs.log("b/c").name == "b/c"


def test_octets_that_are_no_text_and_many_frames_are_shown(engine: DurableEngine, logs: DurableLogs) -> None:
    publish(engine, b"s.\xff", content=[b"one", b"", b"two"])
    (record,) = everything(logs.log("st").read(0, 1))
    assert (record.topic, record.payload) == ("s.\\xff", b"onetwo")


def test_a_log_that_was_deleted_or_replaced_is_an_error(tmp_path: Path, logs: DurableLogs) -> None:
    def made() -> None:
        engine = DurableEngine(b"st", {"folder": str(tmp_path)})
        engine.start()
        engine.open_for_writing()
        publish(engine, b"a")
        engine.close()

    made()
    log = logs.log("st")
    identity = log.bounds().identity
    path = store_path(tmp_path, b"st")
    path.rename(tmp_path / "kept")
    with pytest.raises(ConfigError, match="is gone"):
        log.bounds()
    made()
    with pytest.raises(ConfigError, match="another store"):
        list(log.read(0, 1))
    logs.close()
    assert logs.log("st").bounds().identity != identity


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        DurableLogs({"folder": str(tmp_path / "none")}).open()


def test_limits_warn(tmp_path: Path, engine: DurableEngine) -> None:
    logs = DurableLogs({"folder": str(tmp_path), "max_age": 60, "max_messages": 5})
    log = logs.log("st")
    assert log.warnings() == [
        "stream 'st' removes records after 60 seconds (max_age)",
        "stream 'st' removes records beyond 5 messages (max_messages)",
    ]
    logs.close()

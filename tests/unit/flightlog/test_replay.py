"""What is left to publish, from a flight log and from a dead-letter table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from mama_spark.contracts.errors import FlightLogError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.reading import REPLAY, unpublished
from mama_spark.flightlog.schema import TIMEOUT

from tests.support.flight_logs import BATCH, STREAM, T0, commit_dead_letters, flights, stage, stage_letters

NEXT = WriteId(None, "run-8", None, "nats")


def bad(n: int, name: str = "bad", **other: Any) -> Any:
    payload = pa.array([f"{name}-{i}".encode() for i in range(n)], pa.binary())
    return flights(n, name, failed=n, **{"payload": payload, **other})


def left(path: Path) -> list[str]:
    return sorted(unpublished(str(path), {})["id"].to_pylist())


def test_failed_rows_come_back_as_columns_of_the_sink(tmp_path: Path) -> None:
    headers = pa.array([[("h", ["1", "2"])], None], HEADERS_TYPE)
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3, "good"), bad(2, headers=headers)))
    found = unpublished(str(tmp_path), {})
    assert found.schema == REPLAY
    assert found.sort_by("id").to_pylist() == [
        {"topic": "orders.new", "value": b"bad-0", "headers": [("h", ["1", "2"])], "id": "bad-0"},
        {"topic": "orders.new", "value": b"bad-1", "headers": None, "id": "bad-1"},
    ]


def test_rows_that_timed_out_come_back_too(tmp_path: Path) -> None:
    late = bad(1, "late", event=np.array([TIMEOUT], np.uint8), reasons={0: ("TIMEOUT", None, "late")})
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, late))
    assert left(tmp_path) == ["late-0"]


def test_what_a_later_attempt_got_acknowledged_is_left_out(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, bad(3)))
    commit(str(tmp_path), {}, NEXT, stage(tmp_path, NEXT, flights(2, "bad", at=T0 + 1_000_000)))
    assert left(tmp_path) == ["bad-2"]


def test_attempts_that_were_not_committed_count_both_ways(tmp_path: Path) -> None:
    """An acknowledgement is one whatever became of the batch; so is a failure that nobody has mended."""
    stage(tmp_path, BATCH, bad(2), flights(1, "bad", at=T0 + 1_000_000))
    abort(str(tmp_path), {}, BATCH)
    assert left(tmp_path) == ["bad-1"]


def test_same_id_twice_comes_back_once_as_it_was_last(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, bad(1, payload=pa.array([b"old"]))))
    newer = bad(1, payload=pa.array([b"new"]), at=T0 + 1_000_000)
    commit(str(tmp_path), {}, NEXT, stage(tmp_path, NEXT, newer))
    assert unpublished(str(tmp_path), {})["value"].to_pylist() == [b"new"]


def test_rows_without_payload_or_id_cannot_come_back(tmp_path: Path) -> None:
    some = bad(3, flight_id=pa.array(["a", None, "c"]), payload=pa.array([None, b"x", b"y"], pa.binary()))
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, some))
    assert left(tmp_path) == ["c"]


def test_log_without_failures_leaves_nothing(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(3)))
    found = unpublished(str(tmp_path), {})
    assert (found.num_rows, found.schema) == (0, REPLAY)


def test_dead_letters_are_read_back(tmp_path: Path) -> None:
    commit_dead_letters(str(tmp_path), {}, STREAM, stage_letters(tmp_path, STREAM, 2))
    found = unpublished(str(tmp_path), {}).sort_by("id").to_pylist()
    assert found == [
        {"topic": "orders.new", "value": f"payload of dead-{i}".encode(), "headers": None, "id": f"dead-{i}"}
        for i in range(2)
    ]


def test_dead_letter_with_the_same_id_is_read_once(tmp_path: Path) -> None:
    for run in (STREAM, BATCH):
        commit_dead_letters(str(tmp_path), {}, run, stage_letters(tmp_path, run, 1))
    assert left(tmp_path) == ["dead-0"]


def test_neither_a_log_nor_dead_letters_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    with pytest.raises(FlightLogError, match="neither a flight log nor a dead-letter table"):
        unpublished(str(tmp_path / "other"), {})
    with pytest.raises(FlightLogError, match="there is no table"):
        unpublished(str(tmp_path / "none"), {})
    assert not (tmp_path / "none").exists()

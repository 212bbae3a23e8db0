"""The simulated Delta log and delta-rs: the product's staging and commit leave the same behind in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from mama_spark.contracts.errors import FlightLogError
from mama_spark.flightlog import transaction
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.storage import TableStore

from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.spark.storage import Storage
from tests.support.flight_logs import BATCH, STREAM, flights, rows

APP = ("query-1", 0)


def _stage(uri: str, write_id: object, name: str) -> list[Part]:
    staging = Staging(uri, {}, write_id, 0, 0)  # type: ignore[arg-type]
    staging.check()
    staging.add_flights(flights(2, name))
    return staging.close()


def repeated(uri: str) -> Iterator[object]:
    parts = _stage(uri, STREAM, "a")
    for _ in range(2):
        result = commit(uri, {}, STREAM, parts, app=APP)
        yield result.version, result.committed, result.uncommitted, result.recorded


def again_by_another_run(uri: str) -> Iterator[object]:
    yield commit(uri, {}, STREAM, _stage(uri, STREAM, "a"), app=APP).recorded
    yield commit(uri, {}, STREAM, _stage(uri, STREAM, "b"), app=APP).recorded


def aborted_after_commit(uri: str) -> Iterator[object]:
    parts = _stage(uri, BATCH, "a")
    yield abort(uri, {}, BATCH, []).version
    yield commit(uri, {}, BATCH, parts).version
    yield abort(uri, {}, BATCH, parts).recorded


def left_by_failed_attempts(uri: str) -> Iterator[object]:
    good, _ = _stage(uri, BATCH, "good"), _stage(uri, BATCH, "slow")
    yield commit(uri, {}, BATCH, good).uncommitted


def behind_a_commit_of_others(uri: str) -> Iterator[object]:
    commit(uri, {}, STREAM, _stage(uri, STREAM, "a"), app=APP)
    table = TableStore(uri, {}).table()
    assert table is not None
    commit(uri, {}, BATCH, _stage(uri, BATCH, "b"))
    parts = _stage(uri, BATCH, "c")
    try:
        transaction.add_and_remove(table, [transaction.add_action(parts[0], True)])
    except CommitFailedError:
        yield "conflict"


def a_part_that_is_gone(uri: str) -> Iterator[object]:
    parts = _stage(uri, BATCH, "a")
    TableStore(uri, {}).filesystem().delete_file(parts[0].path)
    try:
        commit(uri, {}, BATCH, parts)
    except FlightLogError:
        yield "refused"


@pytest.mark.parametrize(
    "case",
    [
        repeated,
        again_by_another_run,
        aborted_after_commit,
        left_by_failed_attempts,
        behind_a_commit_of_others,
        a_part_that_is_gone,
    ],
)
def test_simulated_tables_are_as_those_of_delta_rs(case: Callable[[str], Iterator[object]], tmp_path: Path) -> None:
    real = list(case(str(tmp_path)))
    log = rows(tmp_path) if DeltaTable.is_deltatable(str(tmp_path)) else []
    with simulated(), Scheduler(1) as scheduler:
        store, found = Storage(scheduler), list[object]()
        scheduler.spawn("p", lambda: found.extend(case("s3://b/log")), scheduler.host("h"))
        scheduler.run()
        assert scheduler.errors == []
        kept = [(r["flight_id"], which) for which in (True, False) for r in store.rows("s3://b/log", which)]
    assert found == real
    assert sorted(kept) == sorted((r["flight_id"], r["committed"]) for r in log)

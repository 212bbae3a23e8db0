"""The flight log in an S3-compatible store: one set of options for parts, commit and reading."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.errors import FlightLogError
from mama_spark.flightlog import reading
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.maintenance import adopt_orphans
from mama_spark.flightlog.reading import unpublished
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.storage import TableStore
from pyarrow.fs import FileSelector, FileType

from tests.support.flight_logs import (
    BATCH,
    STREAM,
    abort_dead_letters,
    commit_dead_letters,
    flights,
    rows,
    stage,
    stage_letters,
)

pytestmark = pytest.mark.thorough

SERVE = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    """delta-rs' options for a server of this module's own, in a process of its own: delta-rs waits for storage
    while it holds the interpreter's lock, so a server on a thread of this process would never get to answer."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            assert port, "the server ended"
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            }  # fmt: skip
        finally:
            server.kill()


@pytest.fixture
def table(storage: dict[str, str]) -> str:
    """The URL of a table in a bucket of its own."""
    bucket = f"logs-{uuid.uuid4().hex[:12]}"
    with urlopen(Request(f"{storage['AWS_ENDPOINT_URL']}/{bucket}", method="PUT")) as answer:
        assert answer.status == 200
    return f"s3://{bucket}/deep/log"


def test_log_lives_in_an_object_store_from_check_to_report(table: str, storage: dict[str, str]) -> None:
    """Stage, commit, commit again, abort, failed attempt, restart, sweep, report."""
    parts = stage(table, STREAM, flights(3, failed=1), storage=storage)
    assert commit(table, storage, STREAM, parts, app=("query-1", 0)).committed == 1
    assert commit(table, storage, STREAM, parts, app=("query-1", 0)).committed == 0, "it is there"
    assert abort(table, storage, STREAM, parts).recorded

    second = WriteId("query-1", "run-1", 1, "nats")
    stage(table, second, flights(1, "failed"), storage=storage)
    assert abort(table, storage, second).uncommitted == 1
    again = stage(table, second, flights(1, "again"), storage=storage)
    assert commit(table, storage, second, again, app=("query-1", 1)).committed == 1

    stage(table, BATCH, flights(2, "orphan"), storage=storage)
    assert adopt_orphans(table, storage, timedelta(seconds=-5)).rows == 2
    got = {(r["flight_id"], r["committed"]) for r in rows(table, storage)}
    assert got == {
        *((f"id-{i}", True) for i in range(3)),
        ("failed-0", False),
        ("again-0", True),
        ("orphan-0", False),
        ("orphan-1", False),
    }
    assert reading.summarise(table, storage).count("acked", committed=True) == 3
    assert [r["flight_id"] for r in reading.failed(table, storage)] == ["id-2"]
    assert unpublished(table, storage).num_rows == 0, "the log has no payloads"


def test_part_larger_than_one_upload_is_whole(table: str, storage: dict[str, str]) -> None:
    noise = pa.array([np.random.default_rng(i).bytes(100_000) for i in range(200)], pa.binary())
    (part,) = stage(table, BATCH, flights(200, payload=noise), storage=storage)
    assert part.size > 20_000_000
    commit(table, storage, BATCH, [part])
    assert pa.array([r["payload"] for r in rows(table, storage)], pa.binary()).equals(noise)


def test_part_that_is_not_there_is_not_committed_and_the_next_is(table: str, storage: dict[str, str]) -> None:
    (part,) = stage(table, STREAM, flights(1), storage=storage)
    for wrong in (replace(part, size=part.size + 1), replace(part, path=f"{part.path}.parquet")):
        with pytest.raises(FlightLogError, match=f"flightLog {table}: 1 of the 2 files .* something has removed"):
            commit(table, storage, STREAM, [part, wrong], app=("query-1", 0))
    assert commit(table, storage, STREAM, [part], app=("query-1", 0)).committed == 1


def test_prefix_with_objects_of_others_is_refused_and_left_as_it_is(table: str, storage: dict[str, str]) -> None:
    store = TableStore(table, storage)
    for name in ("", "2026/sales.csv"):  # the first is how consoles show a folder
        url = f"{storage['AWS_ENDPOINT_URL']}/{table.removeprefix('s3://')}/{name}"
        with urlopen(Request(url, b"", method="PUT")) as answer:
            assert answer.status == 200
    refused = r"is no Delta table, and its folder holds other files \(2026\)"
    with pytest.raises(FlightLogError, match=refused):
        Staging(table, storage, BATCH, 0, 0).check()
    with pytest.raises(FlightLogError, match=refused):
        commit(table, storage, BATCH, [])
    found = store.filesystem().get_file_info(FileSelector("", recursive=True))
    assert [i.path for i in found if i.type == FileType.File and i.path] == ["2026/sales.csv"]


def test_bucket_that_does_not_exist_is_found_before_the_first_publish(storage: dict[str, str]) -> None:
    with pytest.raises(FlightLogError, match="no-such-bucket"):
        Staging("s3://no-such-bucket/log", storage, BATCH, 0, 0).check()


def test_dead_letters_live_in_an_object_store_from_check_to_replay(table: str, storage: dict[str, str]) -> None:
    parts = stage_letters(table, STREAM, 2, storage=storage)
    assert commit_dead_letters(table, storage, STREAM, parts, app=("query-1", 0)).committed == 1
    assert commit_dead_letters(table, storage, STREAM, parts, app=("query-1", 0)).committed == 0, "they are there"
    assert abort_dead_letters(table, storage, STREAM, parts).recorded
    second = WriteId("query-1", "run-1", 1, "nats")
    stage_letters(table, second, 1, "failed", storage=storage)
    assert abort_dead_letters(table, storage, second).uncommitted == 1
    got = {(r["flight_id"], r["committed"]) for r in rows(table, storage)}
    assert got == {("dead-0", True), ("dead-1", True), ("failed-0", False)}
    assert sorted(unpublished(table, storage)["id"].to_pylist()) == ["dead-0", "dead-1", "failed-0"]

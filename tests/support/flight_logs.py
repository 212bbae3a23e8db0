"""Small flight logs for tests, made in the way a task and a commit make them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.schema import COMPLETED_EXCEPTIONALLY, DEAD_LETTER_TABLE
from mama_spark.flightlog.staging import DeadLetterStaging, Staging

#: 2026-09-21T14:13:20Z
T0 = 1_790_000_000_000_000
STREAM = WriteId("query-1", "run-1", 0, "nats")
BATCH = WriteId(None, "run-7", None, "nats")
commit_dead_letters = partial(commit, kind=DEAD_LETTER_TABLE)
abort_dead_letters = partial(abort, kind=DEAD_LETTER_TABLE)


def flights(n: int = 3, name: str = "id", failed: int = 0, at: int = T0, **other: Any) -> FlightColumns:
    """``n`` flights acknowledged 1 ms apart, the last ``failed`` of them refused."""
    event = np.ones(n, np.uint8)
    event[n - failed :] = COMPLETED_EXCEPTIONALLY
    times = at + 1000 * np.arange(n, dtype=np.int64)
    values: dict[str, Any] = {
        "flight_id": pa.array([f"{name}-{i}" for i in range(n)]),
        "topic": pa.array(["orders.new"] * n).dictionary_encode(),
        "size": np.full(n, 100, np.int32),
        "event": event,
        "event_time": times,
        "publish_time": times - 500,
        "latency_us": np.full(n, 500, np.int64),
        "stream": "ORDERS",
        "sequence": np.arange(1, n + 1),
        "duplicate": np.zeros(n, np.bool_),
        "ack_level": "stored",
        "reasons": dict.fromkeys(range(n - failed, n), ("PUBLISH_ERROR_NOT_ENTITLED", 403, "denied")),
        **other,
    }
    return FlightColumns(**values)


def stage(
    table: Path | str, write_id: WriteId, *columns: FlightColumns, storage: dict[str, str] | None = None, **options: Any
) -> list[Part]:
    """What a task does, from check to close."""
    staging = Staging(str(table), storage or {}, write_id, 0, 0, **options)
    staging.check()
    for some in columns:
        staging.add_flights(some)
    return staging.close()


def stage_letters(
    table: Path | str, write_id: WriteId, n: int, name: str = "dead", storage: dict[str, str] | None = None
) -> list[Part]:
    """``n`` dead letters ``<name>-<i>``, 1 ms apart, from check to close."""
    staging = DeadLetterStaging(str(table), storage or {}, write_id, 0, 0)
    staging.check()
    staging.add_dead_letters(
        pa.array([f"{name}-{i}" for i in range(n)]), pa.array(["orders.new"] * n).dictionary_encode(),
        pa.array([f"payload of {name}-{i}".encode() for i in range(n)], pa.binary()), None,
        [("PUBLISH_ERROR_NOT_ENTITLED", 403, "denied")] * n, T0 + 1000 * np.arange(n, dtype=np.int64),
    )  # fmt: skip
    return staging.close()


def rows(table: Path | str, storage: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """All rows of the table, by event time."""
    read = pa.table(DeltaTable(str(table), storage_options=storage).to_pyarrow_table())
    found: list[dict[str, Any]] = read.sort_by([("event_time", "ascending"), ("flight_id", "ascending")]).to_pylist()
    return found


def set_features(table: Path | str, *features: str, renamed: str | None = None, **configuration: str) -> None:
    """What Spark does when features of Delta are switched on, by a commit of its own.

    :param renamed: a column whose name in the files differs from now on
    """
    log = Path(table, "_delta_log")
    versions = sorted(log.glob("*.json"))
    of_readers = {
        "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck",
    }  # fmt: skip
    reads = sorted(of_readers & {*features})
    protocol = {"minReaderVersion": 3, "readerFeatures": reads} if reads else {"minReaderVersion": 1}
    actions = [json.loads(line) for line in versions[0].read_text().splitlines()]
    metadata = next(action for action in actions if "metaData" in action)
    metadata["metaData"]["configuration"].update({f"delta.{k}": v for k, v in configuration.items()})
    if "columnMapping" in features:
        schema = json.loads(metadata["metaData"]["schemaString"])
        for number, column in enumerate(schema["fields"]):
            inside = f"col-{number}" if column["name"] == renamed else column["name"]
            column["metadata"] = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": inside}
        metadata["metaData"]["schemaString"] = json.dumps(schema)
    written = {"protocol": {**protocol, "minWriterVersion": 7, "writerFeatures": [*features]}}
    text = "\n".join(json.dumps(action) for action in ({"commitInfo": {"timestamp": T0 // 1000}}, written, metadata))
    (log / f"{len(versions):020}.json").write_text(text + "\n")

"""Writes of Spark: a batch write, and a streaming query from its checkpoint on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .application import Application


class JobFailed(Exception):
    """A write or a query has ended with an error; the text says which."""


@dataclass(slots=True)
class Checkpoint:
    """Of a streaming query: what its batches are, by number, and which of them are committed."""

    offsets: dict[int, Any] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def next(self) -> int:
        """The batch that a query begins with."""
        return max(self.commits, default=-1) + 1


def write_batch(
    app: Application,
    make: Callable[[], Any],
    step: str,
    partitions: Sequence[Sequence[pa.RecordBatch]],
    properties: Mapping[str, str],
    batch_id: int | None = None,
) -> None:
    """One batch write, or one micro-batch.

    :param make: makes the writer, in Python; a stream's is made anew for each call
    :raises JobFailed: it is aborted
    """
    try:
        writer = app.call("plan", lambda: pickle.dumps(make()))
    except Exception as e:
        raise JobFailed(f"{step} is not planned: {type(e).__name__}: {e}") from e
    app.step(f"{step} is planned")
    messages, error = app.stage(writer, partitions, properties)
    app.step(f"{step}: tasks have ended")
    more = () if batch_id is None else (batch_id,)

    def python(name: str) -> None:
        """Call the writer's ``commit`` or ``abort``."""

        def run() -> None:
            one = pickle.loads(writer) if batch_id is None else make()
            getattr(one, name)([None if m is None else pickle.loads(m) for m in messages], *more)

        app.call(name, run)

    if error is None:
        try:
            python("commit")
            app.step(f"{step} is committed")
            return
        except Exception as e:  # noqa: BLE001 - Spark aborts for whatever it is
            error = f"commit failed: {type(e).__name__}: {e}"
    app.step(f"{step} is aborted: {error}")
    try:
        python("abort")
    except Exception as e:  # noqa: BLE001
        error += f"; abort failed: {e}"
    raise JobFailed(error)


def run_stream(
    app: Application,
    checkpoint: Checkpoint,
    make: Callable[[], Any],
    query_id: str,
    run_id: str,
    batches: Callable[[int], Sequence[Sequence[pa.RecordBatch]]],
    count: int,
) -> None:
    """A streaming query, from its checkpoint on, until it has committed ``count`` batches.

    :param batches: the partitions of a batch, as this run sees them
    :raises JobFailed: the query has ended with an error
    """
    while (number := checkpoint.next) < count:
        checkpoint.offsets.setdefault(number, number)
        app.step(f"batch {number} begins")
        properties = {
            "sql.streaming.queryId": query_id, "streaming.sql.batchId": str(number), "spark.jobGroup.id": run_id,
        }  # fmt: skip
        write_batch(app, make, f"batch {number}", batches(number), properties, number)
        checkpoint.commits.add(number)
        app.step(f"batch {number} is over")

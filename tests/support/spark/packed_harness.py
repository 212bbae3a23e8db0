"""Runs of the sink with packed messages, held against the broker row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.packing.unpacker import unpack
from mama_spark.testing.oracle import Outcome, Verdict

from tests.support.spark.sink_harness import StreamContents, flights, hold

#: Rows of a message at most; a row's sequence is its message's times this, plus its place.
_PLACES = 1 << 20

Row = tuple[int, str, bytes]  #: number of the message it came from, topic, value


def rows_of(messages: list[tuple[str, bytes, dict[str, list[str]]]]) -> list[Row]:
    """Every row of these messages (topic, payload, headers), in order.

    :raises AssertionError: one of them says to be a pack and is none
    """
    n = np.arange(len(messages))
    topics, payloads, headers = zip(*messages, strict=True) if messages else ((), (), ())
    found = unpack(
        Records(
            n,
            n,
            pa.array(topics, pa.string()),
            pa.array(payloads, pa.binary()),
            pa.array([list((h or {}).items()) for h in headers], HEADERS_TYPE),
        )
    )
    assert not found.errors, found.errors
    values: list[Any] = found.values.to_pylist()
    for run in found.typed:
        values[run.first : run.first + run.columns.num_rows] = [
            repr(sorted(row.items())).encode() for row in run.columns.to_pylist()
        ]
    return [(m, topics[m], value) for m, value in zip(found.records.tolist(), values, strict=True)]


def packed_verdict(
    holder: StreamContents, stream: str, log: Path | str, *, sent: int, exactly_once: bool = True
) -> Verdict:
    """As :func:`~.sink_harness.verdict`, of the rows inside the messages."""
    messages = holder.messages(stream)
    stored = rows_of([(m.topic, m.payload, m.headers) for m in messages])
    places = _places(stored)
    numbered = [
        (messages[m].sequence * _PLACES + place, topic, value)
        for (m, topic, value), place in zip(stored, places, strict=True)
    ]
    good, failed = (_outcomes(flights(log, committed)) for committed in (True, False))
    return hold(good, failed, numbered, sent, exactly_once)


def _outcomes(table: pa.Table) -> list[Outcome]:
    table = table.select(["topic", "payload", "headers", "event", "may_have_landed", "sequence", "rows"])
    flown = table.to_pylist()
    rows = rows_of([(f["topic"], f["payload"], dict(f["headers"] or ())) for f in flown])
    counts = np.bincount([m for m, _, _ in rows], minlength=len(flown)).tolist()
    assert counts == [f["rows"] for f in flown], "the flight log tells other numbers of rows"
    return [
        Outcome(
            topic,
            value,
            flown[m]["event"],
            bool(flown[m]["may_have_landed"]),
            -1 if flown[m]["sequence"] is None else flown[m]["sequence"] * _PLACES + place,
        )
        for (m, topic, value), place in zip(rows, _places(rows), strict=True)
    ]


def _places(rows: list[Row]) -> list[int]:
    """Of each row in its message."""
    places: list[int] = []
    for i, (message, _, _) in enumerate(rows):
        places.append(places[-1] + 1 if i and rows[i - 1][0] == message else 0)
    return places

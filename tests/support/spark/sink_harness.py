"""What runs of the sink left behind, for tests: the flight log held against the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from mama_spark.testing.oracle import Outcome, Verdict, conserve
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import FetchedMessage

_GATE = 400.0
TERMINAL = ("acked", "completed_exceptionally", "timeout")


def flights(log: Path | str, committed: bool | None = True) -> pa.Table:
    """The terminal events of a flight log; ``committed=None``: of all attempts."""
    table = pa.table(DeltaTable(str(log)).to_pyarrow_table())
    table = table.filter(pc.is_in(table["event"], value_set=pa.array(TERMINAL)))
    return table if committed is None else table.filter(pc.equal(table["committed"], committed))


class WriteGate:
    """Holds a write back before its last rows, so that it is still going on when a test interrupts it; open when it is
    left.

    :param folder: of a file that says whether the gate is open
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "open"

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._file.touch()

    def before_the_end(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``: the last batch of a partition that has several comes when the gate is open."""
        held = next(batches, None)
        several = False
        for batch in batches:
            assert held is not None
            yield held
            held, several = batch, True
        if several:
            eventually(self._file.exists, "the test opens the gate", _GATE)
        if held is not None:
            yield held


def counts(table: pa.Table, column: str) -> dict[Any, int]:
    """How often each value stands in ``column``."""
    return {v["values"]: v["counts"] for v in pc.value_counts(table[column].combine_chunks()).to_pylist()}


class StreamContents(Protocol):
    """Tells what a stream holds."""

    def messages(self, name: str, /) -> list[FetchedMessage]: ...


def verdict(holder: StreamContents, stream: str, log: Path | str, *, sent: int, exactly_once: bool = True) -> Verdict:
    """Hold the flight log, kept with ``flightLogPayload=all``, against what the broker holds.

    The committed attempts must have one outcome for each of the ``sent`` rows, all of them different. What an attempt
    that was not committed calls acked must be there, too.
    """
    stored = holder.messages(stream)
    good = flights(log)
    found = conserve(_outcomes(good), ((m.sequence, m.topic, m.payload) for m in stored), sent=sent,
                     exactly_once=exactly_once)  # fmt: skip
    held = {(m.topic, m.payload) for m in stored}
    for o in _outcomes(flights(log, committed=False)):
        if o.event == "acked" and (o.topic, o.payload) not in held:
            found.faults.append(f"acked by an attempt that failed, but not at the broker: {o.payload[:40]!r}")
    if len({(o.topic, o.payload) for o in _outcomes(good)}) != sent:
        found.faults.append(f"{sent} different rows went in, others came out")
    return found


def _outcomes(table: pa.Table) -> list[Outcome]:
    names = ("topic", "payload", "event", "may_have_landed", "sequence")
    columns = [table[name].to_pylist() for name in names]
    return [
        Outcome(topic, payload, event, bool(doubt), -1 if sequence is None else sequence)
        for topic, payload, event, doubt, sequence in zip(*columns, strict=True)
    ]

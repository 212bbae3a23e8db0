"""The stages that mark rows before any is sent: those that no pack can carry, and those whose id came before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, PublishError
from mama_spark.contracts.message import Int64s, payload_bounds
from mama_spark.packing.format import PACK_HEADERS
from mama_spark.publishing.ids.doubled_ids import DoubledIdCheck

from .job import OutcomeCounts
from .stages import SinkBatch, Stage

#: Headers that control the broker or describe the pack: inside a pack they would have no effect.
_CONTROL_HEADERS = rf"(?i)^(nats-|({'|'.join(PACK_HEADERS)})$)"


class MarkUnpackable(Stage):
    """Rejects rows which a pack cannot hold; ``lines``: a pack has one line a value, so line feeds are rejected."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        found = dict[int, PublishError]()
        if self._lines:
            for row in _with_line_feeds(batch.messages.payloads):
                found.setdefault(row, BadRow("the value has a line feed, which pack=lines takes for its end"))
        if batch.messages.headers is not None:
            for row, name in _control_headers(batch.messages.headers):
                found.setdefault(row, BadRow(f"header {name!r} has no effect inside a pack"))
        yield replace(batch, rejected=sorted((found | dict(batch.rejected)).items())) if found else batch


class MarkDoubledIds(Stage):
    """Fails or counts rows whose id came before; ``counts`` gets their number, and the first of them."""

    def __init__(self, check: DoubledIdCheck, counts: OutcomeCounts) -> None:
        self._check, self._counts = check, counts

    def __call__(self, batch: SinkBatch) -> Iterator[SinkBatch]:
        rejected, doubled = self._check.check(batch.messages, batch.rejected)
        self._counts.doubled_ids, self._counts.first_doubled_id = self._check.count, self._check.first
        yield replace(batch, rejected=rejected, doubled=doubled)


def _with_line_feeds(values: pa.Array) -> list[int]:
    if not len(values):
        return []
    data, bounds = values.buffers()[2], payload_bounds(values)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    text_bytes = np.frombuffer(data, np.uint8, size, first) if size else np.empty(0, np.uint8)
    if text_bytes.min(initial=255) > ord("\n"):  # nearly always, in a third of the time that the search takes
        return []
    feeds: Int64s = np.flatnonzero(text_bytes == ord("\n"))
    rows: list[int] = np.unique(np.searchsorted(bounds, feeds + first, "right") - 1).tolist()
    return rows


def _control_headers(headers: pa.MapArray) -> list[tuple[int, str]]:
    """Rows with a header that would have no effect inside a pack, and its name."""
    offsets = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    keys = headers.keys.slice(offsets[0], offsets[-1] - offsets[0])
    found = np.flatnonzero(pc.match_substring_regex(keys, _CONTROL_HEADERS).to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets - offsets[0], found, "right") - 1
    return [(int(row), str(keys[at].as_py())) for row, at in zip(rows, found.tolist(), strict=True)]

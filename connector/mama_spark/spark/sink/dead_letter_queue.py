"""Collects failed rows with ``onError=deadletter``, for a topic, a table, or both."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, PublishError, TooLarge
from mama_spark.contracts.headers import NATS_PREFIX
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.packing.format import PACK, PACK_ROWS
from mama_spark.packing.split import singles
from mama_spark.publishing.ids.ids import IdMaker

from .outcomes import with_nulls
from .stages import SinkBatch

if TYPE_CHECKING:
    from mama_spark.flightlog.staging import DeadLetterStaging

#: Waiting dead letters are published at so many rows or bytes, and at the end of the partition.
MIN_BATCH_ROWS, MIN_BATCH_BYTES = 1_000, 4 << 20
_INFO_CHARS = 512


@dataclass(frozen=True, slots=True)
class DeadLetterContext:
    """Context of flights that are dead letters."""


class DeadLetterQueue:
    """Collects failed rows on the publisher's thread; the task's thread publishes them.

    :param with_ids: the broker deduplicates
    :param content_ids: tells rows apart whose flights may share an id, because it is from a column: it is null in some,
        or doubled. None = all flights have ids of their own
    """

    def __init__(
        self, topic: str | None, table: DeadLetterStaging | None, with_ids: bool, content_ids: IdMaker | None = None
    ) -> None:
        self._topic = topic
        self._table = table
        self._with_ids = with_ids
        self._content_ids = content_ids
        self._lock = threading.Lock()
        self._waiting: list[tuple[bytes, dict[str, list[str]], str]] = []
        self._bytes = 0

    def add(
        self,
        some: MessageBatch,
        ids: pa.Array,
        errors: list[PublishError],
        at: Int64s,
        extra: pa.RecordBatch | None = None,
    ) -> int:
        """Add failed rows, in full; how many.

        :param ids: flight ids, in place of the ids of the messages
        :param at: µs since the epoch, one a row
        """
        if self._table is not None:
            reasons = [(e.status, e.code or None, e.info) for e in errors]
            of_rows = dict(enumerate(errors))
            topics, payloads = (with_nulls(getattr(some, name), name, of_rows) for name in ("topics", "payloads"))
            self._table.add_dead_letters(ids, topics, payloads, some.headers, reasons, at, extra)
        if self._topic is None:
            return len(some)
        topics, payloads = some.topics.to_pylist(), some.payloads.to_pylist()
        headers = some.headers.to_pylist() if some.headers is not None else [None] * len(some)
        letters = [
            (b"" if isinstance(error, TooLarge) else payload, _headers(error, topic, own), letter_id)
            for error, topic, payload, own, letter_id in zip(
                errors, topics, payloads, headers, self._dead_letter_ids(some, ids), strict=True
            )
        ]
        with self._lock:
            self._waiting += letters
            self._bytes += sum(len(payload) for payload, _, _ in letters)
        return len(some)

    def _dead_letter_ids(self, some: MessageBatch, ids: pa.Array) -> list[str]:
        """A letter is stored once, also when its task is repeated, and two rows are two letters."""
        letters = [f"{flight or ''}-dlq" for flight in ids.to_pylist()]
        if self._content_ids is None or not self._with_ids:
            return letters
        # rows are equal if their ids are, too: these stand for the stream, by which the maker tells rows apart as well
        rows = replace(some, ids=None, streams=ids.fill_null("").dictionary_encode())
        return [f"{letter}-{row}" for letter, row in zip(letters, self._content_ids.ids(rows).to_pylist(), strict=True)]

    def take(self, *, all_of_them: bool) -> MessageBatch | None:
        with self._lock:
            enough = len(self._waiting) >= MIN_BATCH_ROWS or self._bytes >= MIN_BATCH_BYTES
            if not self._waiting or not (enough or all_of_them):
                return None
            letters, self._waiting, self._bytes = self._waiting, [], 0
        payloads, headers, ids = zip(*letters, strict=True)
        assert self._topic is not None
        return MessageBatch.of(
            [self._topic] * len(letters), list(payloads), list(headers), list(ids) if self._with_ids else None
        )


def single_rows_of(
    batch: MessageBatch, flight_id: pa.Array, context: SinkBatch, errors: list[PublishError], at: Int64s
) -> tuple[MessageBatch, pa.Array, list[PublishError], Int64s]:
    """Failed flights as messages of one row, with the row's id, or else the flight's with the position in the pack."""
    if context.packed is None:
        return batch, flight_id, errors, at
    rows, of = singles(batch)
    place = np.arange(len(of)) - np.searchsorted(of, of)
    known = pc.binary_join_element_wise(
        flight_id.cast(pa.string()).take(pa.array(of)), pc.cast(pa.array(place), pa.string()), "-"
    )
    ids = pc.coalesce(rows.ids, known)
    return replace(rows, ids=None), ids, [errors[i] for i in of.tolist()], at[of]


def _headers(error: PublishError, topic: str | None, own: list[tuple[str, list[str]]] | None) -> dict[str, list[str]]:
    """The reason, and the headers of the row, unless they may be the reason, without those that control the broker. The
    headers of a pack are kept with its payload."""
    headers: dict[str, list[str]] = {}
    for name, values in own or ():
        keep = not isinstance(error, BadRow) and not name.lower().startswith(NATS_PREFIX)
        if name in (PACK, PACK_ROWS):
            keep = not isinstance(error, TooLarge)
        if keep:
            headers.setdefault(name, []).extend(values)
    headers["Mama-Error-Status"] = [error.status]
    headers["Mama-Error-Code"] = [str(error.code)]
    headers["Mama-Error-Info"] = [_one_line(error.info)]
    headers["Mama-Error-Topic"] = [_one_line(topic or "")]
    return headers


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_INFO_CHARS]).split())

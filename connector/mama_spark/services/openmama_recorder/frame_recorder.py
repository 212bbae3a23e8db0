"""Makes records of what a peer received, gaps included. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.mama.messages.omnm_columns import ColumnDecoder, DecodedColumns
from mama_spark.mama.messages.status import RESERVED, MsgStatus, MsgType
from mama_spark.mama.messages.typed_columns import first_of_each
from mama_spark.message import MessageBatch
from mama_spark.openmama_wire.log.gap_tracker import GapTracker, MissingNumbers
from mama_spark.openmama_wire.log.records import (
    DICTIONARY,
    MamaGapCause,
    MamaRecord,
    MamaRecordKind,
    decode_records,
    message_topic,
    record_topic,
)
from mama_spark.openmama_wire.peer import ReceivedFrame
from mama_spark.record_log import Records

from .market_data_requests import Asks, MarketDataAsk

CONFLATE_COUNT = ("wConflateCount", 22)
_NUMBERS: dict[str, int] = {
    **{name: RESERVED[name].fid for name in ("MdMsgType", "MdMsgStatus", "MdSeqNum", "MamaSenderId")},
    CONFLATE_COUNT[0]: CONFLATE_COUNT[1],
}
_STATES = frozenset((MsgType.INITIAL, MsgType.RECAP, MsgType.SNAPSHOT, MsgType.REFRESH))
_NUMBERED = (MamaRecordKind.MESSAGE, MamaRecordKind.IMAGE, MamaRecordKind.RECAP)
_HIGHEST_NUMBER = 2**32 - 1

Numbers = npt.NDArray[np.uint64]


class FrameRecorder:
    """Makes the records of one recorder, in order. For one thread.

    :param framing: name of the network's framing
    :ivar tracker: numbers of topics and senders
    """

    def __init__(self, prefix: str, framing: str) -> None:
        self._prefix, self._framing = prefix, framing
        self.tracker = GapTracker()
        self._decoder = ColumnDecoder(_is_number)
        self._restored: set[tuple[str, int]] = set()  #: topics and senders of which only the log is known
        self._topics: dict[str, str] = {}

    def records(
        self, frames: Sequence[ReceivedFrame], asked: Sequence[MarketDataAsk | None], received: int
    ) -> tuple[list[MamaRecord], list[str]]:
        """The records of these frames, and the topics in which messages are missing.

        :param asked: for each frame what it answers; None: it was published
        :param received: nanoseconds since the epoch
        """
        payloads = [frame.frame.payload for frame in frames]
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        ends = np.cumsum(sizes)
        found = self._decoder.decode(b"".join(payloads), ends - sizes, ends)
        columns = {name: _numbers(found, name, len(frames)).tolist() for name in _NUMBERS}
        rows = zip(frames, asked, *columns.values(), strict=True)
        records: list[MamaRecord] = []
        gaps: list[str] = []
        for (frame, raw, _), ask, kind, status, number, sender, conflated in rows:
            topic = frame.topic if ask is None else f"{ask.source}.{ask.symbol}"
            what = _kind(ask, kind, status)
            if what in _NUMBERED and 0 < number <= _HIGHEST_NUMBER:
                missing = self._missing(topic, what, kind, number, sender, conflated)
                if missing is not None:
                    records.append(self._gap(topic, sender, missing, received))
                    gaps.append(topic)
                self._restored.discard((topic, sender))
            stored = (
                self._topic(topic)
                if what is not MamaRecordKind.DICTIONARY
                else self.own_topic(f"{DICTIONARY}.{frame.topic if ask is None else ask.source}")
            )
            records.append(MamaRecord(what, stored, received, raw, self._framing, len(raw) - len(frame.payload)))
        return records, gaps

    def own_topic(self, rest: str) -> str:
        """Topic in the log of what is about no topic of messages."""
        return record_topic(rest, self._prefix)

    def restore(self, records: Records) -> None:
        """Take the last numbers from what an earlier recorder wrote."""
        decoded = decode_records(records.payloads)
        found = self._decoder.decode(decoded.data, decoded.begins, decoded.ends)
        numbers, senders = (_numbers(found, name, len(decoded)) for name in ("MdSeqNum", "MamaSenderId"))
        rows = np.flatnonzero(np.isin(decoded.heads["kind"], _NUMBERED) & (numbers > 0) & (numbers <= _HIGHEST_NUMBER))
        topics = records.topics.cast(pa.string()).to_pylist() if len(rows) else []
        for row in rows.tolist():
            topic, sender = message_topic(topics[row]), int(senders[row])
            self.tracker.restore(topic, sender, int(numbers[row]))
            self._restored.add((topic, sender))

    def refused(self, batch: MessageBatch, received: int) -> list[MamaRecord]:
        """Gaps for records that the log rejected."""
        decoded = decode_records(batch.payloads)
        found = self._decoder.decode(decoded.data, decoded.begins, decoded.ends)
        numbers, senders = (_numbers(found, name, len(decoded)) for name in ("MdSeqNum", "MamaSenderId"))
        topics = batch.topics.cast(pa.string()).to_pylist()
        return [
            MamaRecord(MamaRecordKind.GAP, topics[row], received, cause=MamaGapCause.REFUSED, sender=int(senders[row]),
                       first=int(numbers[row]) & _HIGHEST_NUMBER, last=int(numbers[row]) & _HIGHEST_NUMBER)
            for row in np.flatnonzero(np.isin(decoded.heads["kind"], _NUMBERED)).tolist()
        ]  # fmt: skip

    def _missing(
        self, topic: str, what: MamaRecordKind, kind: int, number: int, sender: int, conflated: int
    ) -> MissingNumbers | None:
        if what is not MamaRecordKind.MESSAGE or kind in _STATES:
            return self.tracker.image(topic, sender, number)
        return self.tracker.update(topic, sender, number, conflated)

    def _gap(self, topic: str, sender: int, missing: MissingNumbers, received: int) -> MamaRecord:
        cause = MamaGapCause.AWAY if (topic, sender) in self._restored else MamaGapCause.WAY
        return MamaRecord(
            MamaRecordKind.GAP, self._topic(topic), received, cause=cause, sender=sender, first=missing.first,
            last=missing.last,
        )  # fmt: skip

    def _topic(self, topic: str) -> str:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) > 100_000:
                self._topics.clear()
            found = self._topics[topic] = record_topic(topic, self._prefix)
        return found


def _is_number(name: str, fid: int) -> bool:
    return name in _NUMBERS or fid in _NUMBERS.values()


def _numbers(found: DecodedColumns, name: str, n: int) -> Numbers:
    """A field of whole numbers of each message, shape (n,); 0 where it is missing, negative or no number."""
    fid = _NUMBERS[name]
    named = [block for block in found.blocks if block.name == name or block.fid == fid]
    mine = [block for block in named if isinstance(block.values, np.ndarray) and block.values.dtype.kind in "iu"]
    at, ordered = first_of_each(mine, n)
    numbers = np.zeros(n, np.uint64)
    if ordered:
        values: npt.NDArray[Any] = np.concatenate([_unsigned(block.values) for block in ordered])
        numbers[at >= 0] = values[at[at >= 0]]
    return numbers


def _unsigned(values: npt.NDArray[Any]) -> Numbers:
    return np.where(values < 0, 0, values).astype(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def _kind(ask: MarketDataAsk | None, kind: int, status: int) -> MamaRecordKind:
    if ask is None:
        return MamaRecordKind.RECAP if kind == MsgType.RECAP else MamaRecordKind.MESSAGE
    if ask.asks is Asks.DICTIONARY:
        return MamaRecordKind.DICTIONARY
    if status not in (MsgStatus.OK, MsgStatus.STALE, MsgStatus.POSSIBLY_STALE):
        return MamaRecordKind.REFUSAL
    return MamaRecordKind.RECAP if kind == MsgType.RECAP else MamaRecordKind.IMAGE

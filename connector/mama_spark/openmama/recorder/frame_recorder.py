"""Makes records of what a peer received, gaps included, and the messages of the log that carry them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import HEADERS_TYPE, Int64s, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.mama.messages.omnm_columns import ColumnDecoder, DecodedColumns
from mama_spark.mama.messages.sequence_numbers import HIGHEST, UNCOUNTED
from mama_spark.mama.messages.status import RESERVED, MsgStatus, MsgType
from mama_spark.mama.messages.typed_columns import first_of_each
from mama_spark.openmama.recorder.gaps import GapTracker, MissingNumbers
from mama_spark.openmama.wire.frame_filter import FrameColumns
from mama_spark.openmama.wire.records import (
    DICTIONARY,
    HEAD_SIZE,
    FrameRecords,
    MamaGapCause,
    MamaRecord,
    MamaRecordKind,
    decode_records,
    message_topic,
    record_topic,
)
from mama_spark.packing.codec import ArrowCodec
from mama_spark.packing.format import VALUE
from mama_spark.packing.packer import Packed, Packer, Rows
from mama_spark.packing.unpacker import unpack

from .market_data_requests import Asks, MarketDataAsk

CONFLATE_COUNT = ("wConflateCount", 22)
_NUMBERS: dict[str, int] = {
    **{name: RESERVED[name].fid for name in ("MdMsgType", "MdMsgStatus", "MdSeqNum", "MamaSenderId")},
    CONFLATE_COUNT[0]: CONFLATE_COUNT[1],
}
_NUMBERED = (MamaRecordKind.MESSAGE, MamaRecordKind.IMAGE, MamaRecordKind.RECAP)
_IS_NUMBERED = np.isin(np.arange(256), _NUMBERED)
_SCHEMA = pa.schema([pa.field(VALUE, pa.binary())])
_NO_HEADERS = pa.scalar(None, HEADERS_TYPE)

Numbers = npt.NDArray[np.uint64]
Kinds = npt.NDArray[np.int64]


class RecordedFrames(NamedTuple):
    """Records to write.

    :ivar topics: topics of the records in the log, dictionary<int32, string>; ``payloads``: the records, binary
    :ivar gaps: topics in which messages are missing, one for each gap
    :ivar recaps: topics of which a recap came
    """

    topics: pa.DictionaryArray
    payloads: pa.Array
    gaps: list[str]
    recaps: list[str]


class FrameRecorder:
    """Makes the records of one recorder, in order. For one thread."""

    def __init__(self, prefix: str, framing: str) -> None:
        self._prefix, self._framing = prefix, framing
        self.tracker = GapTracker()
        self._decoder = ColumnDecoder(_is_number)
        self._restored: set[tuple[str, int]] = set()  #: topics and senders of which only the log is known
        self._topic = lru_cache(100_000)(self.own_topic)

    def records(
        self, frames: FrameColumns, asked: Mapping[int, MarketDataAsk], received: int | Int64s
    ) -> RecordedFrames:
        """The records of these frames, with gap records before the messages that show them.

        :param asked: frame -> the request that it answers; all others were published
        :param received: nanoseconds since the epoch, of all or of each
        """
        n = len(frames)
        received = np.broadcast_to(np.asarray(received, np.int64), n)
        made = FrameRecords(frames.raws)
        begins, ends = made.bounds[:-1] + HEAD_SIZE + frames.payload_at, made.bounds[1:]
        found = self._decoder.decode(made.data, begins, ends)
        columns = {name: _numbers(found, name, n) for name in _NUMBERS}
        kinds = np.where(columns["MdMsgType"] == MsgType.RECAP, MamaRecordKind.RECAP, MamaRecordKind.MESSAGE)
        topics, codes = list(frames.topics), frames.codes.copy()
        stored = [self._topic(topic) for topic in topics]
        for row, ask in asked.items():
            kinds[row] = _answer_kind(ask, int(columns["MdMsgType"][row]), int(columns["MdMsgStatus"][row]))
            codes[row] = len(topics)
            topics.append(f"{ask.source}.{ask.symbol}")
            stored.append(self._topic(topics[-1]) if ask.symbol else self.own_topic(f"{DICTIONARY}.{ask.source}"))
        names, name_codes = _distinct(topics, codes) if asked else (topics, codes)
        payloads = made.filled(kinds, self._framing, received, frames.payload_at)
        gaps = self._gaps(names, name_codes, kinds, columns, received)
        if gaps:
            all_topics, all_payloads = [stored[code] for code in codes.tolist()], payloads.to_pylist()
            for row, gap in reversed(gaps):
                all_topics.insert(row, gap.topic)
                all_payloads.insert(row, gap.encode())
            stored, codes = _distinct(all_topics, np.arange(len(all_topics)))
            payloads = pa.array(all_payloads, pa.binary())
        coded = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(stored, pa.string()))
        recaps = np.unique(name_codes[kinds == MamaRecordKind.RECAP]).tolist()
        return RecordedFrames(
            coded, payloads, [names[name_codes[row]] for row, _ in gaps], [names[code] for code in recaps]
        )

    def own_topic(self, rest: str) -> str:
        """Log topic of a record that belongs to no message topic."""
        return record_topic(rest, self._prefix)

    def restore(self, records: Records) -> None:
        """Take the last numbers from the records of an earlier recorder."""
        heads, topics, numbers, senders = self._read(records)
        rows = np.flatnonzero(np.isin(heads["kind"], _NUMBERED) & (numbers > 0))
        names = [message_topic(topic) for topic in topics.dictionary.to_pylist()]
        codes = topics.indices.to_numpy()
        for row in rows.tolist():
            topic, sender = names[codes[row]], int(senders[row])
            self.tracker.restore(topic, sender, int(numbers[row]))
            self._restored.add((topic, sender))

    def refused(self, batch: MessageBatch, received: int) -> list[MamaRecord]:
        """Gap records for records that the log rejected: for messages, and for gap records, which are made again.

        :param received: nanoseconds since the epoch
        """
        none = np.zeros(len(batch), np.int64)
        heads, coded, numbers, senders = self._read(Records(none, none, batch.topics, batch.payloads, batch.headers))
        topics = coded.cast(pa.string()).to_pylist()
        gaps = []
        for row in np.flatnonzero(np.isin(heads["kind"], (*_NUMBERED, MamaRecordKind.GAP))).tolist():
            if (head := heads[row])["kind"] == MamaRecordKind.GAP:
                cause, sender, first, last = (int(head[name]) for name in ("cause", "sender", "first", "last"))
            else:
                cause, sender, first, last = MamaGapCause.REFUSED, int(senders[row]), *2 * (int(numbers[row]),)
            gaps.append(
                MamaRecord(
                    MamaRecordKind.GAP, topics[row], received, cause=cause, sender=sender, first=first, last=last
                )
            )
        return gaps

    def _read(self, records: Records) -> tuple[npt.NDArray[Any], pa.DictionaryArray, Numbers, Numbers]:
        """Heads, topics in the log, numbers and senders of this recorder's records, packed ones included."""
        unpacked = unpack(records)
        topics = records.topics if pa.types.is_dictionary(records.topics.type) else records.topics.dictionary_encode()
        decoded = decode_records(unpacked.values)
        found = self._decoder.decode(decoded.data, decoded.begins, decoded.ends)
        numbers, senders = (_numbers(found, name, len(decoded)) for name in ("MdSeqNum", "MamaSenderId"))
        numbers[numbers > HIGHEST] = 0
        return decoded.heads, topics.take(pa.array(unpacked.records)), numbers, senders

    def _gaps(
        self, names: list[str], codes: Int64s, kinds: Kinds, columns: Mapping[str, Numbers], received: Int64s
    ) -> list[tuple[int, MamaRecord]]:
        """Gap records, each with the row that shows it, in the order of the rows."""
        numbers = columns["MdSeqNum"]
        rows = np.flatnonzero(numbers)
        rows = rows[_IS_NUMBERED[kinds[rows]] & (numbers[rows] <= HIGHEST)]
        rows = self._without_consecutive(names, codes, kinds, columns, rows)
        fields = (columns[name][rows].tolist() for name in ("MdMsgType", "MdSeqNum", "MamaSenderId", CONFLATE_COUNT[0]))
        gaps: list[tuple[int, MamaRecord]] = []
        for row, what, kind, number, sender, conflated in zip(
            rows.tolist(), kinds[rows].tolist(), *fields, strict=True
        ):
            topic = names[codes[row]]
            repeats = what != MamaRecordKind.MESSAGE or kind in UNCOUNTED
            missing = self.tracker.update(topic, sender, number, 0 if repeats else max(1, conflated))
            if missing is not None:
                gaps.append((row, self._gap(topic, sender, missing, int(received[row]))))
            self._restored.discard((topic, sender))
        return gaps

    def _without_consecutive(
        self, names: list[str], codes: Int64s, kinds: Kinds, columns: Mapping[str, Numbers], rows: Int64s
    ) -> Int64s:
        """The rows of topics and senders that have more than published messages with consecutive numbers; the tracker
        takes the others topic by topic."""
        if not len(rows):
            return rows
        code = codes[rows]
        sender, number = columns["MamaSenderId"][rows], columns["MdSeqNum"][rows].astype(np.int64)
        order = np.lexsort((sender, code))  # stable: rows of one topic and sender stay in order
        code, sender, number = code[order], sender[order], number[order]
        begins = np.flatnonzero(np.concatenate(([True], (np.diff(code) != 0) | (sender[1:] != sender[:-1]))))
        ends = np.concatenate((begins[1:], [len(rows)]))
        good = ((kinds[rows] == MamaRecordKind.MESSAGE) & ~np.isin(columns["MdMsgType"][rows], list(UNCOUNTED)))[order]
        begin = np.zeros(len(rows), np.bool_)
        begin[begins] = True
        good[1:] &= begin[1:] | (np.diff(number) == 1)
        left = np.ones(len(rows), np.bool_)
        for group in np.flatnonzero(np.logical_and.reduceat(good, begins)).tolist():
            first, last = int(begins[group]), int(ends[group]) - 1
            key = names[code[first]], int(sender[first])
            if self.tracker.continues(*key, int(number[first]), int(number[last])):
                left[first : last + 1] = False
                self._restored.discard(key)
        return np.sort(rows[order][left])

    def _gap(self, topic: str, sender: int, missing: MissingNumbers, received: int) -> MamaRecord:
        cause = MamaGapCause.AWAY if (topic, sender) in self._restored else MamaGapCause.WAY
        return MamaRecord(
            MamaRecordKind.GAP, self._topic(topic), received, cause=cause, sender=sender, first=missing.first,
            last=missing.last,
        )  # fmt: skip


def _distinct(topics: list[str], codes: Int64s) -> tuple[list[str], Int64s]:
    """Each topic once, and the codes, places in ``topics``, that say the same of these."""
    known: dict[str, int] = {}
    place = np.array([known.setdefault(topic, len(known)) for topic in topics], np.int64)
    return list(known), place[codes]


def _is_number(name: str, fid: int) -> bool:
    return name in _NUMBERS or fid in _NUMBERS.values()


def _numbers(found: DecodedColumns, name: str, n: int) -> Numbers:
    """A whole-number field of each message, shape (n,); 0 where it is missing, negative or no number."""
    fid = _NUMBERS[name]
    named = [block for block in found.blocks if block.name == name or block.fid == fid]
    mine = [block for block in named if isinstance(block.values, np.ndarray) and block.values.dtype.kind in "iu"]
    if len(mine) == 1 and len(mine[0].rows) == n:  # rows are ascending, so these are all
        return _unsigned(mine[0].values)
    at, ordered = first_of_each(mine, n)
    numbers = np.zeros(n, np.uint64)
    if ordered:
        values: npt.NDArray[Any] = np.concatenate([_unsigned(block.values) for block in ordered])
        numbers[at >= 0] = values[at[at >= 0]]
    return numbers


def _unsigned(values: npt.NDArray[Any]) -> Numbers:
    return np.where(values < 0, 0, values).astype(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)


def _answer_kind(ask: MarketDataAsk, kind: int, status: int) -> MamaRecordKind:
    if ask.asks is Asks.DICTIONARY:
        return MamaRecordKind.DICTIONARY
    if status not in (MsgStatus.OK, MsgStatus.STALE, MsgStatus.POSSIBLY_STALE):
        return MamaRecordKind.REFUSAL
    return MamaRecordKind.RECAP if kind == MsgType.RECAP else MamaRecordKind.IMAGE


class RecordPacker:
    """Packs records of one topic into messages of the log, in their order. For one thread.

    :param max_rows: records of one message; 1: no packing
    :param max_bytes: payload bytes of a packed message; a larger record travels alone
    :param plain: prefixes of log topics whose records are never packed
    """

    def __init__(self, max_rows: int, max_bytes: int, plain: Sequence[str] = ()) -> None:
        self._max_rows, self._max_bytes, self._plain = max_rows, max_bytes, tuple(plain)
        self._codec = ArrowCodec(_SCHEMA)

    def messages(self, topics: pa.DictionaryArray, payloads: pa.Array) -> Iterator[MessageBatch]:
        """Messages without ids of binary records, in order for each topic.

        :param topics: topics of the records in the log
        """
        if self._max_rows == 1 or len(payloads) < 2:
            yield MessageBatch(topics, payloads)
            return
        alone = np.array([topic.startswith(self._plain) for topic in topics.dictionary.to_pylist()], np.bool_)
        rows = np.arange(len(payloads))
        if alone.any():
            apart = alone[topics.indices.to_numpy()]
            yield MessageBatch(topics, payloads).take(rows[apart])
            rows = rows[~apart]
            topics, payloads = topics.take(pa.array(rows)), payloads.take(pa.array(rows))
        if len(payloads):
            packer = Packer(self._codec, max_rows=self._max_rows, max_bytes=self._max_bytes)
            numbers = np.arange(len(payloads))
            for packs in (packer.add(Rows(topics, pa.record_batch([payloads], _SCHEMA), numbers)), packer.finish()):
                for packed in packs:
                    yield _without_single_packs(packed, payloads)


def _without_single_packs(packed: Packed, payloads: pa.Array) -> MessageBatch:
    batch, single = packed.batch, packed.rows == 1
    if not single.any():
        return batch
    mask = pa.array(single)
    records = payloads.take(pa.array(packed.numbers[packed.starts[:-1]]))
    headers = pc.if_else(mask, _NO_HEADERS, batch.headers)
    return MessageBatch(batch.topics, pc.if_else(mask, records, batch.payloads), headers)

"""Converts OMNM messages, and records of OpenMAMA messages, to columns of ``mamasub``, batch by batch.

The column ``mama`` holds the ``kind`` of each message, and time and origin of a recorder's record. Its ``fields`` map
names (``#`` and number without a name; the first of a name counts) to number, type and value as text; it is null where
the query names fields as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Int64s
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.omnm import BadMessage, decode
from mama_spark.mama.messages.omnm_columns import ColumnDecoder, DecodedColumns, FieldBlock
from mama_spark.mama.messages.status import RESERVED, MsgStatus, MsgType
from mama_spark.mama.messages.typed_columns import TypedField, converted, first_of_each, typed_columns
from mama_spark.openmama.wire.dictionary import dictionary_of
from mama_spark.openmama.wire.frames import payload_fault
from mama_spark.openmama.wire.naming import PeerPresence, decode_naming
from mama_spark.openmama.wire.records import (
    FRAMING_NAMES,
    MamaGapCause,
    MamaRecordKind,
    MamaRecords,
    decode_records,
    message_topic,
)
from mama_spark.packing.unpacked import sparse_texts

from . import FIELD_TYPE

CORRUPT = "corrupt"
_NO_FAULTS: Mapping[int, str] = {}
_STAMPS = {
    "msg_type": TypedField("MdMsgType", pa.int64(), RESERVED["MdMsgType"].fid),
    "msg_status": TypedField("MdMsgStatus", pa.int64(), RESERVED["MdMsgStatus"].fid),
    "seq_num": TypedField("MdSeqNum", pa.int64(), RESERVED["MdSeqNum"].fid),
    "sender": TypedField("MamaSenderId", pa.string(), RESERVED["MamaSenderId"].fid),
}
_NAMES: dict[str, dict[int, str]] = {
    "msg_type": {int(t): t.name for t in MsgType},
    "msg_status": {int(s): s.name for s in MsgStatus},
}


class CorruptMessage(MamaError):
    """A message that is not OMNM, with ``failOnCorrupt``."""


class OpenMamaColumns:
    """Makes the columns of batches of messages. For one thread.

    :param column_type: Spark's form of the type of ``mama``; None: the column is not wanted
    :param fields: the columns that the query names; empty: the map has all fields
    :param strict: raise for an unreadable message instead of describing it in its row
    """

    def __init__(self, column_type: pa.StructType | None, fields: Sequence[TypedField] = (), strict: bool = False):
        self._type, self._fields, self._strict = column_type, tuple(fields), strict
        self.bad = 0
        self._with_map = column_type is not None and not fields
        stamps = tuple(_STAMPS.values()) if column_type is not None else ()
        chosen = (*self._fields, *stamps)
        self._decoder = ColumnDecoder(
            None if self._with_map else lambda name, fid: any(field.takes(name, fid) for field in chosen)
        )

    def columns(
        self, payloads: pa.Array, topics: pa.Array, sequences: Int64s, faults: Mapping[int, str] = _NO_FAULTS
    ) -> dict[str, pa.Array]:
        """The column ``mama``, if it is wanted, and those of the fields.

        :param faults: message -> known reason why it cannot be read
        :raises CorruptMessage: a message cannot be read, with ``strict``
        """
        records = decode_records(payloads)
        n = len(records)
        found = self._decoder.decode(records.data, records.begins, records.ends)
        reasons = {**_reasons(records, found), **faults}
        self.bad += len(reasons)
        if self._strict and reasons:
            row = min(reasons)
            raise CorruptMessage(f"message {sequences[row]}: {reasons[row]}")
        typed, unfit = typed_columns(found, self._fields, n)
        columns = {field.name: column for field, column in zip(self._fields, typed, strict=True)}
        if self._type is not None:
            cells = self._cells(records, found, reasons, unfit, topics)
            arrays = [cells[f.name] if cells[f.name].type == f.type else cells[f.name].cast(f.type) for f in self._type]
            columns["mama"] = pa.StructArray.from_arrays(arrays, fields=list(self._type))
        return columns

    def _cells(
        self, records: MamaRecords, found: DecodedColumns, reasons: dict[int, str], unfit: dict[int, str],
        topics: pa.Array,
    ) -> dict[str, pa.Array]:  # fmt: skip
        n = len(records)
        heads = records.heads
        stamps, _ = typed_columns(found, tuple(_STAMPS.values()), n)
        stamped = dict(zip(_STAMPS, stamps, strict=True))
        gap = heads["kind"] == MamaRecordKind.GAP
        if gap.any():
            sender = pa.array(heads["sender"], mask=~gap).cast(pa.string())
            stamped["sender"] = pc.coalesce(stamped["sender"], sender)
        texts = {**unfit, **reasons}
        return {
            "kind": _kinds(records, reasons),
            "framing": _named(pa.array(heads["framing"]), FRAMING_NAMES),
            "topic": _topics(records, topics),
            "received": pa.array(heads["received"], mask=~records.is_record),
            "msg_type": _named(stamped["msg_type"], _NAMES["msg_type"], others=True),
            "msg_status": _named(stamped["msg_status"], _NAMES["msg_status"], others=True),
            "seq_num": stamped["seq_num"],
            "sender": stamped["sender"],
            "fields": _maps(found, n) if self._with_map else pa.nulls(n, pa.map_(pa.string(), FIELD_TYPE)),
            "gap_from": pa.array(heads["first"].astype(np.int64), mask=~gap),
            "gap_to": pa.array(heads["last"].astype(np.int64), mask=~gap),
            "cause": _causes(heads),
            "detail": _details(records),
            "reason": sparse_texts(texts, n),
        }


def _reasons(records: MamaRecords, found: DecodedColumns) -> dict[int, str]:
    """Why messages cannot be read; a record without a payload has nothing to read."""
    reasons = dict(records.bad)
    empty = records.is_record & (records.begins == records.ends)
    for row, why in found.bad.items():
        if row not in reasons and not empty[row]:
            begin, end = int(records.begins[row]), int(records.ends[row])
            reasons[row] = payload_fault(bytes(memoryview(records.data)[begin : min(end, begin + 1)])) or why
    return reasons


def _kinds(records: MamaRecords, reasons: dict[int, str]) -> pa.Array:
    names = {int(kind): kind.name.lower() for kind in MamaRecordKind}
    kinds = np.where(records.is_record, records.heads["kind"], np.uint8(MamaRecordKind.MESSAGE))
    if reasons:
        kinds[list(reasons)] = 0
    return _named(pa.array(kinds), {**names, 0: CORRUPT})


def _named(numbers: pa.Array, names: Mapping[int, str], *, others: bool = False) -> pa.Array:
    """Names of numbers; without a name null, or with ``others`` the number."""
    coded = numbers.dictionary_encode()
    words = [names.get(number, str(number) if others else None) for number in coded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(coded.indices)


def _topics(records: MamaRecords, topics: pa.Array) -> pa.Array:
    if not records.is_record.any():
        return pa.nulls(len(records), pa.string())
    coded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    names = pa.array([message_topic(topic) or None for topic in coded.dictionary.to_pylist()], pa.string())
    found = names.take(coded.indices)
    return found if records.is_record.all() else pc.if_else(pa.array(records.is_record), found, None)


def _causes(heads: npt.NDArray[Any]) -> pa.Array:
    """Causes of gaps, and new states of peers."""
    gaps = {int(cause): cause.name.lower() for cause in MamaGapCause if cause}
    peers = {100 + state: state.name.lower() for state in PeerPresence}
    is_peer = heads["kind"] == MamaRecordKind.PEER
    return _named(pa.array(np.where(is_peer, heads["cause"] + 100, heads["cause"])), {**gaps, **peers})


def _details(records: MamaRecords) -> pa.Array:
    kinds = records.heads["kind"]
    rows = np.flatnonzero((kinds == MamaRecordKind.DICTIONARY) | (kinds == MamaRecordKind.PEER)).tolist()
    return sparse_texts({row: text for row in rows if (text := _detail(records, row)) is not None}, len(records))


def _detail(records: MamaRecords, row: int) -> str | None:
    try:
        if records.heads["kind"][row] == MamaRecordKind.PEER:
            frame = decode_naming(records.body(row))
            names = ("program", "host", "pid", "uuid", "endpoint")
            return orjson.dumps({name: getattr(frame, name) for name in names}).decode()
        payload = bytes(memoryview(records.data)[int(records.begins[row]) : int(records.ends[row])])
        entries = [{"fid": fid, "name": name, "type": kind.name} for fid, name, kind in dictionary_of(decode(payload))]
    except BadMessage:
        return None
    return orjson.dumps(entries).decode()


# --- the map of fields ---------------------------------------------------------------------------------------


def _maps(found: DecodedColumns, n: int) -> pa.MapArray:
    blocks = _first_of_names(found.blocks, n)
    if not blocks:
        maps = pa.array([[]] * n, pa.map_(pa.string(), FIELD_TYPE))
    else:
        rows = np.concatenate([block.rows for block in blocks])
        sizes = [len(block.rows) for block in blocks]
        order = pa.array(np.lexsort((np.repeat([block.place for block in blocks], sizes), rows)))
        codes = pa.array(np.repeat(np.arange(len(blocks), dtype=np.int32), sizes)).take(order)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=n)))).astype(np.int32)
        values = [
            pa.array([block.fid for block in blocks], pa.int32()).take(codes),
            pa.array([block.type.name for block in blocks]).take(codes),
            pa.concat_arrays([_texts(block) for block in blocks]).take(order),
        ]
        keys = pa.array([block.name or f"#{block.fid}" for block in blocks]).take(codes)
        fields = pa.StructArray.from_arrays(values, fields=list(FIELD_TYPE))
        maps = pa.MapArray.from_arrays(pa.array(offsets), keys, fields)
    if not found.bad:
        return maps
    good = np.ones(n, np.bool_)
    good[list(found.bad)] = False
    return pc.if_else(pa.array(good), maps, pa.scalar(None, maps.type))


def _first_of_names(blocks: Iterable[FieldBlock], n: int) -> list[FieldBlock]:
    by_key: dict[str, list[FieldBlock]] = {}
    for block in blocks:
        by_key.setdefault(block.name or f"#{block.fid}", []).append(block)
    first: list[FieldBlock] = []
    for mine in by_key.values():
        rows_seen = sum(len(block.rows) for block in mine)
        at, ordered = first_of_each(mine, n)
        if rows_seen == int((at >= 0).sum()):
            first += mine
            continue
        begin = 0
        for block in ordered:
            count = len(block.rows)
            keep = at[block.rows] == np.arange(begin, begin + count)
            begin += count
            first.append(block if keep.all() else block.of_rows(keep))
    return first


def _texts(block: FieldBlock) -> pa.Array:
    if block.type is FieldType.PRICE:
        return pa.array([repr(value) for value in block.values["value"].tolist()], pa.string())
    return converted(block, pa.string())[0]

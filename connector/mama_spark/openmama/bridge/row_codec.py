"""Encodes rows as OMNM messages: each column is a field. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mama_spark.contracts.errors import BadRow, BadTopic, ConfigError, SchemaError
from mama_spark.contracts.message import EncodedRows
from mama_spark.contracts.topics import join_parts, present_parts
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import HEADER, encode
from mama_spark.openmama.wire.frames import payload_fault
from mama_spark.openmama.wire.market_data import DICTIONARY_ROOT, Stamp

from .field_columns import Faults, FieldForm, FieldForms, constant, field_column, joined

COLUMNS = {
    "topic": "string",
    "root": "string",
    "source": "string",
    "symbol": "string",
    "value": "binary: a whole OMNM message, in place of columns for its fields",
}
_PARTS = ("root", "source", "symbol")
_STAMPS = ("MdMsgType", "MdMsgStatus")


class FieldCodec:
    """A :class:`~mama_spark.contracts.message.RowCodec`.

    :param topic: topic of all messages; None: columns have it
    :param prefix: prefix of all topics
    """

    columns: ClassVar[Mapping[str, str]] = COLUMNS
    needed: ClassVar[Sequence[str]] = ()
    takes_others: ClassVar[bool] = True

    def __init__(self, forms: FieldForms, topic: str | None, prefix: str | None = None) -> None:
        self._forms, self._topic, self._prefix = forms, topic, prefix

    def check(self, schema: pa.Schema) -> None:
        """See :class:`~mama_spark.contracts.message.RowCodec`.

        :raises SchemaError: no column says the topic, nothing is there to publish, or a field cannot hold a column
        """
        names = set(schema.names)
        for name in ("topic", *_PARTS):
            if name in names and not pt.is_string(schema.field(name).type):
                raise SchemaError(f"column {name!r} must be string, it is {schema.field(name).type}")
        if self._topic is None and not names & {"topic", "source", "symbol"}:
            raise SchemaError(
                "no column 'topic' (string), nor source and symbol: name one so, or give the option topic"
            )
        if self._topic is not None and "topic" in names:
            raise SchemaError("both option topic and a column 'topic' are given; drop one of them")
        forms = self._forms_of(schema)
        if "value" in names:
            kind = schema.field("value").type
            if not (pt.is_binary(kind) or pt.is_large_binary(kind)):
                raise SchemaError(f"column 'value' must be {COLUMNS['value']}; it is {kind}: name it otherwise")
            if forms:
                raise SchemaError(
                    f"column {forms[0].name!r}: a column 'value' is the whole message, so there can be no field "
                    "besides; drop one of them"
                )
        elif not forms:
            raise SchemaError("nothing to publish: a message needs a column for each of its fields")
        unknown = [name for name in self._forms.named if name not in {form.name for form in forms}]
        if unknown:
            raise ConfigError(f"option mamaFields names {unknown[0]!r}, which is no column")

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        faults = Faults()
        topics = self._topics(rows, faults)
        payloads = self._values(rows, faults) if "value" in rows.schema.names else self._fields(rows, faults)
        return EncodedRows(topics, payloads, sorted(faults.bad.items()))

    def _forms_of(self, schema: pa.Schema) -> list[FieldForm]:
        skip = {"value"} | ({"topic"} if "topic" in schema.names else set(_PARTS))
        if self._topic is not None:
            skip |= {"topic"}
        return [self._forms.form(f.name, f.type) for f in schema if f.name not in skip]

    def _fields(self, rows: pa.RecordBatch, faults: Faults) -> pa.Array:
        forms = self._forms_of(rows.schema)
        present = {form.name for form in forms}
        stamps = [f for f in Stamp().fields() if f.name in _STAMPS and f.name not in present]
        begin = HEADER + b"".join(encode(MamaMsg([f]))[len(HEADER) :] for f in stamps)
        columns = [constant(begin, rows.num_rows)]
        columns += [field_column(form, rows.column(form.name), faults) for form in forms]
        return joined(columns)

    def _values(self, rows: pa.RecordBatch, faults: Faults) -> pa.Array:
        values = rows.column("value").cast(pa.binary())
        good = pc.fill_null(pc.starts_with(values, pattern=b"O"), False)
        if not pc.all(good).as_py():
            for row in np.flatnonzero(~np.asarray(good)).tolist():
                value = values[row].as_py()
                why = "the value is null" if value is None else payload_fault(value) or "no message"
                faults.bad.setdefault(row, BadRow(why))
        return values.fill_null(b"")

    def _topics(self, rows: pa.RecordBatch, faults: Faults) -> pa.DictionaryArray:
        n, names = rows.num_rows, rows.schema.names
        if self._topic is not None:
            topics = pa.repeat(pa.scalar(self._topic, pa.string()), n)
        elif "topic" in names:
            topics = rows.column("topic")
        else:
            topics = framed_topics([rows.column(name) if name in names else None for name in _PARTS], n)
        if self._prefix:
            topics = pc.binary_join_element_wise(self._prefix, topics, ".")
        missing = pc.or_(topics.is_null(), pc.equal(topics, "").fill_null(False))
        for row in np.flatnonzero(np.asarray(missing)).tolist():
            faults.bad.setdefault(row, BadTopic.of_null("topics", "the topic is null"))
        encoded = topics.fill_null("").dictionary_encode()
        assert isinstance(encoded, pa.DictionaryArray)
        return encoded


def framed_topics(parts: list[pa.Array | None], n: int) -> pa.Array:
    """Root, source and symbol as OpenMAMA's bridges join them: without the symbol under a root other than the
    dictionary's."""
    root, source, symbol = present_parts(pa.nulls(n, pa.string()) if part is None else part for part in parts)
    under_root = pc.fill_null(pc.not_equal(root, DICTIONARY_ROOT), False)
    return join_parts([root, source, pc.if_else(under_root, None, symbol)])

"""Encodes rows as changes of keys in a bucket, as the KeyValue interfaces of NATS clients write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mama_spark.contracts.errors import BadRow, BadTopic, ConfigError, PublishError, SchemaError
from mama_spark.contracts.message import EncodedRows, HeaderEntries, offsets_of
from mama_spark.contracts.record_log import PUT
from mama_spark.options.times import duration
from mama_spark.publishing.outage_reporter import retry_while_unavailable

from .jetstream.answers import ApiForbidden
from .protocol import key_value as kv
from .protocol.headers import EXPECTED_LAST, TTL
from .read.log_connection import LogConnection
from .settings import DEFAULT_API_PREFIX, NatsSettings

COLUMNS = {
    "key": "string",
    "value": "binary or string",
    "operation": "string: put, delete, purge or expired",
    "expectedrevision": "long: the revision that the key must have; 0 = it must not exist",
    "ttl": "string: a duration, such as 30s",
    "headers": "as of messages",
}
_KEYS = "letters, digits, and - / _ = or a dot that is not at an end"
_TEXTS = ("key", "operation", "ttl")
_PURGE = {kv.OPERATION: kv.PURGE, kv.ROLLUP: kv.ROLLUP_SUBJECT}
_HEADERS = {"delete": {kv.OPERATION: kv.DELETE}, "purge": _PURGE, "expired": _PURGE}
#: They would store another change than the columns say.
_RESERVED = {
    **dict.fromkeys((kv.OPERATION.lower(), kv.ROLLUP.lower()), "use the column operation"),
    EXPECTED_LAST.lower(): "use the column expectedRevision",
}


class Bucket:
    """Subjects of the keys of a bucket, asked of the server at first use. ``timeout``: seconds; ``wait``: ask again
    while the middleware does not answer."""

    def __init__(self, name: str, settings: NatsSettings, *, timeout: float, wait: bool) -> None:
        self._name, self._settings, self._timeout, self._wait = name, settings, timeout, wait

    @cached_property
    def subject_head(self) -> str:
        """Part of a subject before the key. ConfigError: there is no such bucket. Unavailable: no answer."""
        say = "waiting until the bucket can be looked up: %s"
        return retry_while_unavailable(self._find_head, wait=self._wait, say=say)

    def _find_head(self) -> str:
        stream = kv.stream_of(self._name)
        connection = LogConnection(self._settings, self._timeout)
        connection.connect()
        try:
            found = connection.api.stream(stream)
        except ApiForbidden:  # a mirror would not be known, and takes no messages
            return kv.write_prefix({"name": stream})
        finally:
            connection.close()
        if found is None or found.limit("max_msgs_per_subject") is None:
            what = "it keeps any number of messages of each subject" if found else "it is missing"
            raise ConfigError(f"option bucket={self._name}: the stream {stream!r} is no bucket: {what}")
        head = kv.write_prefix(found.config)
        if head.startswith("$KV.") and self._settings.api_prefix != DEFAULT_API_PREFIX:
            head = self._settings.api_prefix + head
        if not head.startswith("$KV.") and self._settings.exactly_once:
            raise ConfigError(
                f"option exactlyOnce: keys of bucket {self._name!r} are written to another domain or account ({head}), "
                "where what is stored is not looked for: connect there"
            )
        return head


class KeyCodec:
    """A :class:`~mama_spark.contracts.message.RowCodec`.

    :param ttl: lifetime in seconds of values whose row has none; None = that of the bucket
    """

    columns: ClassVar[Mapping[str, str]] = COLUMNS
    needed: ClassVar[Sequence[str]] = ("key",)
    takes_others: ClassVar[bool] = False

    def __init__(self, subject_head: Callable[[], str], ttl: float | None = None) -> None:
        self._subject_head, self._ttl = subject_head, ttl

    def check(self, schema: pa.Schema) -> None:
        if not {"value", "operation"} & set(schema.names):
            raise SchemaError(f"no column 'value' ({COLUMNS['value']})")
        for field in schema:
            text = pt.is_string(field.type) or pt.is_large_string(field.type)
            fits = text if field.name in _TEXTS else pt.is_int32(field.type) or pt.is_int64(field.type)
            if field.name == "value":
                fits = text or pt.is_binary(field.type) or pt.is_large_binary(field.type)
            if not fits:
                raise SchemaError(f"column {field.name!r} must be {COLUMNS[field.name]}; it is {field.type}")

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """Raises as :meth:`Bucket.subject_head`."""
        n, bad = rows.num_rows, dict[int, PublishError]()
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        keys = given["key"].cast(pa.large_binary())
        good, null = kv.are_keys(keys), BadTopic.of_null("topics", "the key is null")
        for row in _where(pc.invert(good)):
            bad[row] = BadTopic(f"no key is {_shown(keys[row])}: {_KEYS}") if keys[row].is_valid else null
        topics = pc.if_else(good, keys, b"").cast(pa.string())
        topics = pc.binary_join_element_wise(self._subject_head(), topics, "").dictionary_encode()

        operations = pc.fill_null(_texts(given.get("operation"), n), PUT.encode())
        puts, known = pc.equal(operations, PUT.encode()), pa.array([PUT.encode(), *map(str.encode, _HEADERS)])
        for row in _where(pc.invert(pc.is_in(operations, known))):
            bad.setdefault(row, BadRow(f"no operation is {_shown(operations[row])}: put, delete, purge or expired"))
        values = _texts(given.get("value"), n)
        for row in _where(pc.and_(puts, values.is_null())):
            bad.setdefault(row, BadRow.of_null("payloads", "the value is null: a put needs one"))
        payloads = pc.if_else(pc.and_(puts, values.is_valid()), values, b"")

        entries = [
            _entries(pc.equal(operations, operation.encode()), name, value)
            for operation, headers in _HEADERS.items()
            for name, value in headers.items()
        ]
        if (expected := given.get("expectedrevision")) is not None:
            for row in _where(pc.less(expected, 0)):
                bad.setdefault(row, BadRow(f"no revision is {expected[row]}: the last one of the key, or 0"))
            entries.append(_entries(expected.is_valid(), EXPECTED_LAST, expected.cast(pa.string())))
        ttl = self._lifetimes(_texts(given.get("ttl"), n), operations, puts, bad)
        entries.append(_entries(ttl.is_valid(), TTL, ttl))
        return EncodedRows(topics, payloads, sorted(bad.items()), [e for e in entries if len(e.rows)], _RESERVED)

    def _lifetimes(
        self, column: pa.Array, operations: pa.Array, puts: pa.Array, bad: dict[int, PublishError]
    ) -> pa.Array:
        """The ``Nats-TTL`` of each row."""
        coded, texts = column.dictionary_encode(), []
        for number, text in enumerate(coded.dictionary):
            try:
                texts.append(_ttl_text(duration(text.as_py().decode(errors="replace"))))
            except ValueError as e:
                texts.append("")
                for row in _where(pc.equal(coded.indices, number)):
                    bad.setdefault(row, BadRow(f"the ttl {e}, got {_shown(text)}"))
        found = pa.array(texts, pa.string()).take(coded.indices)
        for row in _where(pc.and_(pc.equal(operations, b"delete"), found.is_valid())):
            bad.setdefault(row, BadRow("a delete has no ttl: the key keeps its earlier values; purge has"))
        usual = pa.scalar(None if self._ttl is None else _ttl_text(self._ttl), pa.string())
        return pc.if_else(pc.and_(puts, found.is_null()), usual, found)


def _texts(column: pa.Array | None, n: int) -> pa.Array:
    """A binary or string column as bytes; nulls without a column."""
    return pa.nulls(n, pa.large_binary()) if column is None else column.cast(pa.large_binary())


def _where(mask: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False)).tolist()
    return rows


def _shown(text: pa.Scalar) -> str:
    return repr(text.as_py().decode(errors="replace"))


def _ttl_text(seconds: float) -> str:
    return str(int(seconds)) if seconds == int(seconds) else f"{round(seconds * 1000)}ms"


def _entries(where: pa.Array, name: str, values: pa.Array | str) -> HeaderEntries:
    rows = np.array(_where(where), np.int64)
    taken = pa.repeat(values, len(rows)) if isinstance(values, str) else values.take(pa.array(rows))
    lists = pa.ListArray.from_arrays(offsets_of(np.ones(len(rows), np.int64)), taken)
    return HeaderEntries(rows, pa.repeat(name, len(rows)), lists)

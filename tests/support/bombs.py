"""``python -m tests.support.bombs``: reads messages that are small and would be huge, under a limit of its memory.

Prints a JSON object: what was made of each of them. Runs in a process of its own, because the limit is the process's.
"""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.discovery import image_codec
from mama_spark.malamute.bridge import records as mlp_records
from mama_spark.malamute.bridge.discovery.codec import DiscoveryCodec, stored
from mama_spark.malamute.protocol.commands import StreamDeliver, encode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.extensions import read as read_extension
from mama_spark.mama.discovery.discovery_rows import DiscoveryRowReader
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.nats.protocol.records import DeliveryBuffer
from mama_spark.options import SubscribeOptions
from mama_spark.spark.subscribe.packed_rows import RowUnpacker
from mama_spark.spark.subscribe.schema import message_columns_of, schema_of
from pyspark.sql.types import ArrayType, BooleanType, LongType, MapType, StringType, StructField, StructType

from tests.support.nats.deliveries import columns

#: Bytes that may be allocated beside what the process has after its imports. The messages have up to 32 MB.
ALLOWED = 320 << 20
END = b"\xff\xff\xff\xff\0\0\0\0"
MIB = 1 << 20


def arrow(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.schema.serialize()) + bytes(batch.serialize()) + END


def read(form: str, rows: int, payload: bytes, schema: StructType | None = None, most: int | None = None,
         header: str = "") -> dict[str, Any]:  # fmt: skip
    """The rows of one message, and the first reason that stands in one.

    :param most: batches
    """
    headers = [("Mama-Pack", [form]), ("Mama-Pack-Rows", [str(rows)]), ("more", [header])]
    one = np.zeros(1, np.int64)
    topics, payloads = pa.array(["t"]).dictionary_encode(), pa.array([payload], pa.binary())
    o = SubscribeOptions.parse({"url": "memory://x", "topics": ">"})
    unpacking = RowUnpacker(o, message_columns_of(schema or schema_of(o), o), "S")
    count, reason = 0, None
    for batch in islice(
        unpacking.batches(Records(one, one, topics, payloads, pa.array([headers], HEADERS_TYPE))), most
    ):
        count += batch.num_rows
        if "pack_error" in batch.schema.names and batch.num_rows:
            reason = reason or batch["pack_error"][0].as_py()
    return {"rows": count, "reason": reason}


def delivered(block: bytes, messages: int) -> dict[str, Any]:
    """Messages with this header block."""
    tails = [b"%d.%d.1.0" % (n, n) for n in range(1, messages + 1)]
    buffer = DeliveryBuffer([b"t"] * messages, tails, [b"x"] * messages, [block] * messages)
    return unpacked(columns(buffer).records)


def properties(count: int) -> dict[str, Any]:
    """One message of a Malamute broker with so many headers."""
    extension = Extension(sequence=1, time=1, headers=tuple((b"%x" % i, b"") for i in range(count)))
    return unpacked(mlp_records.records([[b"\xaa\xa5\x01\x01s\x01a\x01t" + write(extension), b"x"]]))


def unpacked(records: Records) -> dict[str, Any]:
    """Rows, headers of each, and the reason in the first."""
    o = SubscribeOptions.parse({"url": "memory://x", "topics": ">", "includeHeaders": "true"})
    made = list(RowUnpacker(o, message_columns_of(schema_of(o), o), "S").batches(records))
    count = sum(batch.num_rows for batch in made)
    headers = sum(len(batch["headers"].keys) for batch in made)
    return {"rows": count, "headers": headers // count, "reason": made[0]["pack_error"][0].as_py()}


def sent(count: int) -> dict[str, Any]:
    """One message to a Malamute broker with so many headers in a frame of 64 MB."""
    extension = read_extension(b"MS\x01" + b"\x08\0\2\0\0" * count)
    return {"rows": 0, "headers": len(extension.headers), "reason": "too many" if extension.too_many else None}


def discovered(*fields: bytes) -> dict[str, Any]:
    """A discovery record of a source ``s`` and these fields."""
    payload = b"O\x01\x00" + field(FieldType.STRING, b"SourceName", b"s\0") + b"".join(fields)
    change = DiscoveryEvent(DiscoveryEventKind.RECORD, 1, "o", 1, SourceKey("s", None), payload, None, None)
    row = DiscoveryRowReader("nats", "x").row(change)
    return {"rows": 1, "event": row.event, "source": row.source_name, "reason": row.info}


def discovered_over_malamute(*fields: bytes) -> dict[str, Any]:
    """The same record as a message of a broker's own stream."""
    codec = DiscoveryCodec()
    payload = b"O\x01\x00" + field(FieldType.STRING, b"SourceName", b"s\0") + b"".join(fields)
    subject = codec.subject("rec", SourceKey("s", None)).encode()
    one = stored(encode(StreamDeliver(b"_MAMA_EVENTS", b"", subject, [payload], write(Extension(sequence=1, time=1)))))
    assert one is not None
    event = codec.event_of(one)
    assert event is not None
    row = DiscoveryRowReader("malamute", "x").row(event)
    return {"rows": 1, "event": row.event, "source": row.source_name, "reason": row.info}


def field(kind: FieldType, name: bytes, value: bytes) -> bytes:
    return bytes([kind]) + b"\0\0" + name + b"\0" + value


def vector(kind: FieldType, body: bytes) -> bytes:
    return field(kind, b"v", struct.pack("<I", len(body)) + body)


def image() -> dict[str, Any]:
    """The image of a discovery read, of a gigabyte of zeros."""
    zeros = DiscoveryEvent(DiscoveryEventKind.RECORD, 1, "o", 1, None, bytes(16 * MIB), None, None)
    small = image_codec.pack([zeros] * 2, MIB)
    whole = b"".join(small)
    announced = struct.pack("<q", 32 * MIB)
    assert whole.count(announced)
    try:
        image_codec.unpack([whole.replace(announced, struct.pack("<q", 1024 * MIB))])
    except ValueError as e:
        return {"rows": 0, "reason": str(e)}
    return {"rows": 2, "reason": None}


BITS = pa.record_batch({"bit": pa.array(np.ones(1_000_000, np.bool_))})
WIDE = StructType([StructField("bit", BooleanType()), *(StructField(f"c{i}", LongType()) for i in range(200))])
WITH_HEADERS = StructType(
    [StructField("bit", BooleanType()), StructField("headers", MapType(StringType(), ArrayType(StringType())))]
)
BOMBS: dict[str, Callable[[], dict[str, Any]]] = {
    "line feeds": lambda: read("lines;v=1", 2, b"\n" * (32 * MIB)),
    "as many rows as may be": lambda: read("lines;v=1", 1_000_000, b"\n" * 999_999),
    "200 columns that are null": lambda: read("arrow;v=1", 1_000_000, arrow(BITS), WIDE),
    "a header for each of a million rows": lambda: read(
        "arrow;v=1", 1_000_000, arrow(BITS), WITH_HEADERS, 3, "x" * 60_000
    ),
    "a million rows of JSON": lambda: read("arrow;v=1", 1_000_000, arrow(BITS.rename_columns(["x" * 60_000]))),
    "10,000 columns": lambda: read("arrow;v=1", 1, arrow(pa.record_batch({f"c{i}": [1] for i in range(10_000)}))),
    "headers of a megabyte": lambda: delivered(b"NATS/1.0\r\na: " + b"x" * MIB + b"\r\n\r\n", 8),
    "a million headers": lambda: delivered(
        b"NATS/1.0\r\n" + b"".join(b"%x:\r\n" % i for i in range(10**6)) + b"\r\n", 1
    ),
    "50,000 properties of Malamute": lambda: properties(50_000),
    "a million properties of Malamute": lambda: properties(10**6),
    "13 million properties sent to Malamute": lambda: sent(13 * 10**6),
    "many blocks of headers": lambda: delivered(
        b"NATS/1.0\r\n" + b"".join(b"%x:\r\n" % i for i in range(9_000)) + b"\r\n", 128
    ),
    "100,000 topics": lambda: discovered(*(field(FieldType.STRING, b"t%d" % i, b"x\0") for i in range(10**5))),
    "100,000 topics over Malamute": lambda: discovered_over_malamute(
        *(field(FieldType.STRING, b"t%d" % i, b"x\0") for i in range(10**5))
    ),
    "fields of one name": lambda: discovered(field(FieldType.BOOL, b"t", b"\1") * (2 * MIB)),
    "a vector of messages": lambda: discovered(
        vector(FieldType.VECTOR_MSG, (struct.pack("<I", 3) + b"O\x01\x00") * MIB)
    ),
    "a vector of strings": lambda: discovered(vector(FieldType.VECTOR_STRING, b"a\0" * (8 * MIB))),
    "an image of zeros": image,
}


def main() -> None:
    status = Path("/proc/self/status").read_text()
    size = int(status.partition("VmSize:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (size + ALLOWED, size + ALLOWED))
    found: dict[str, Any] = {}
    for name, bomb in BOMBS.items():
        try:
            found[name] = bomb()
        except MemoryError as e:
            found[name] = {"rows": None, "reason": f"{type(e).__name__} {e}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""What says to be a pack and is none is a row with its reason: no exception, and no memory for what is announced."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.packing.unpacked import Unpacked
from mama_spark.packing.unpacker import unpack

from tests.support.memory import peak_of
from tests.support.tables import each

VALUES = pa.record_batch({"value": pa.array([b"one", b"", b"three"]), "id": pa.array(["1", None, "3"])})
SCHEMA, BATCH, END = VALUES.schema.serialize(), VALUES.serialize(), b"\xff\xff\xff\xff\0\0\0\0"
BOMB = (64 << 20) + 0x123456
WHOLE = SCHEMA.to_pybytes() + BATCH.to_pybytes() + END


BINARY = pa.binary()


def read(*packs: tuple[str | None, str | None, bytes], kind: pa.DataType = BINARY) -> Unpacked:
    maps = [
        [(name, [value]) for name, value in (("Mama-Pack", form), ("Mama-Pack-Rows", rows), ("Nats-Msg-Id", "p-0"))
         if value is not None]
        for form, rows, _ in packs
    ]  # fmt: skip
    n = np.arange(len(packs))
    payloads = pa.array([payload for _, _, payload in packs], kind)
    return unpack(Records(n + 1, n, pa.array(["t"] * len(packs)), payloads, pa.array(maps, HEADERS_TYPE)))


def reason(form: str | None, rows: str | None, payload: bytes) -> str:
    """Of one bad pack between good ones, which are not touched by it."""
    packs = ("arrow;v=1", "3", WHOLE), (form, rows, payload), ("lines;v=1", "2", b"x\ny")
    found, of_views = read(*packs), read(*packs, kind=pa.binary_view())
    assert (of_views.errors, of_views.values.to_pylist()) == (found.errors, found.values.to_pylist())
    assert found.records.tolist() == [0, 0, 0, 1, 2, 2]
    assert found.index.tolist() == [0, 1, 2, -1, 0, 1]
    assert found.values.to_pylist() == [b"one", b"", b"three", payload, b"x", b"y"]
    assert found.errors.keys() == {3}
    assert found.headers is not None
    assert ("Nats-Msg-Id", ["p-0"]) in found.headers[3].as_py()
    assert found.headers.null_count == 5
    return found.errors[3]


def test_a_pack_that_is_cut_anywhere_is_one_bad_row() -> None:
    assert not read(("arrow;v=1", "3", WHOLE)).errors
    for end in range(len(WHOLE)):
        assert reason("arrow;v=1", "3", WHOLE[:end])


@each("rows", ["2", "4", "0", "-3", "", "3.0", "\u0661", "1000001", "99999999999999999999", None])
def test_a_wrong_number_of_rows_is_an_error(rows: str | None) -> None:
    assert "rows" in reason("arrow;v=1", rows, WHOLE).lower()
    assert reason("lines;v=1", rows, b"1\n2\n3")


@each("form", ["arrow;v=3", "lines", "arrow", "zip;v=1", ""])
def test_an_unknown_format_or_version_is_an_error(form: str) -> None:
    assert "unknown" in reason(form, "3", WHOLE)


def test_bytes_after_the_only_batch_are_an_error() -> None:
    assert "end" in reason("arrow;v=1", "3", SCHEMA.to_pybytes() + 2 * BATCH.to_pybytes() + END)
    assert "end" in reason("arrow;v=1", "3", WHOLE + b"\0")


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_bomb_is_refused_before_it_is_unpacked(codec: str) -> None:
    """64 MB of zeros, and the same with a size announced that nobody has."""
    sink = pa.BufferOutputStream()
    zeros = pa.record_batch({"value": pa.array([bytes(BOMB)])})
    with pa.ipc.new_stream(sink, zeros.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(zeros)
    payload = sink.getvalue().to_pybytes()
    size = BOMB.to_bytes(8, "little")
    assert len(payload) < 1 << 20
    assert size in payload
    for bomb in (payload, payload.replace(size, (1 << 50).to_bytes(8, "little"))):
        assert "compressed" in reason("arrow;v=1", "1", bomb)


def read_forged_sizes() -> None:
    """The length of the body, of the metadata and of the rows, as large as they can be written."""
    metadata = int.from_bytes(BATCH.to_pybytes()[4:8], "little")
    body = len(BATCH) - 8 - metadata
    for size in (body, 3):  # the length of the body, the number of rows
        sought = size.to_bytes(8, "little")
        data = BATCH.to_pybytes()
        places = [at for at in range(8, 8 + metadata - 8) if data[at : at + 8] == sought]
        assert places
        for at in places:
            forged = data[:at] + (1 << 40).to_bytes(8, "little") + data[at + 8 :]
            assert reason("arrow;v=1", "3", SCHEMA.to_pybytes() + forged + END)
    forged = BATCH.to_pybytes()
    forged = forged[:4] + (0x7FFFFFF0).to_bytes(4, "little") + forged[8:]
    assert reason("arrow;v=1", "3", SCHEMA.to_pybytes() + forged + END)
    assert reason("lines;v=1", "1000000", b"1\n2")


def test_sizes_that_are_only_announced_are_never_allocated() -> None:
    assert max(peak_of(read_forged_sizes)) < 1 << 20, "40 kB; 2 GB at least are announced"


@each("column", [pa.nulls(3), pa.array(["a", "b", "a"]).dictionary_encode(), pa.array([{}, {}, {}], pa.struct([]))])
def test_columns_whose_rows_cost_no_bytes_are_refused(column: pa.Array) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("value", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], ["value"]))
    assert reason("arrow;v=1", "3", sink.getvalue().to_pybytes())


@each("scale", [-1, 11, 1_000, 0x7F000002])
def test_decimals_of_an_unknown_scale_are_an_error(scale: int) -> None:
    """Arrow crashes when it casts some of them."""
    column = pa.array([1, 2, 3], pa.int64()).cast(pa.decimal128(19)).view(pa.decimal128(10, scale))
    batch = pa.record_batch({"value": column})
    payload = batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes() + END
    assert "decimal" in reason("arrow;v=1", "3", payload)


@pytest.mark.parametrize("depth", [100, 1_500])
def test_a_schema_that_is_nested_too_deep_is_an_error(depth: int) -> None:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    assert reason("arrow;v=1", "3", pa.schema([("value", kind)]).serialize().to_pybytes() + BATCH.to_pybytes() + END)


def test_numbers_of_the_other_byte_order_are_an_error_and_not_misread() -> None:
    """The schema names its byte order in the first field of its table, which a writer leaves out when it is ours."""
    batch = pa.record_batch({"n": pa.array([1, 2, 3], pa.int32())})
    head = bytearray(batch.schema.serialize().to_pybytes())

    def i32(at: int) -> int:
        return int.from_bytes(head[at : at + 4], "little", signed=True)

    def slots(table: int) -> int:
        return table - i32(table) + 4

    message = 8 + i32(8)
    header = message + int.from_bytes(head[slots(message) + 4 : slots(message) + 6], "little")
    schema = header + i32(header)
    assert head[slots(schema) : slots(schema) + 2] == b"\0\0"
    head[slots(schema) : slots(schema) + 2] = head[slots(schema) + 2 : slots(schema) + 4]  # some other number
    payload = bytes(head) + batch.serialize().to_pybytes() + END
    assert pa.ipc.open_stream(payload).read_all().to_pydict() == {"n": [1 << 24, 2 << 24, 3 << 24]}
    assert "big-endian" in reason("arrow;v=1", "3", payload)


def test_what_another_arrow_writer_makes_is_read() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, VALUES.schema) as writer:
        writer.write_batch(VALUES)
    found = read(("arrow;v=1", "3", sink.getvalue().to_pybytes()))
    assert not found.errors
    assert found.values.to_pylist() == [b"one", b"", b"three"]
    assert found.ids is not None
    assert found.ids.to_pylist() == ["1", None, "3"]


def test_any_damage_gives_rows_or_a_reason() -> None:
    """Bytes changed at random: what is still a pack is read within its size, and nothing raises or crashes."""
    dice = random.Random(7)
    good = 0
    for _ in range(500):
        damaged = bytearray(WHOLE)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        found = read(("arrow;v=1", "3", bytes(damaged)))
        if found.errors:
            assert len(found) == 1
        else:
            good += 1
            assert len(found) == 3
            for column in (found.values, found.headers, found.ids):
                if column is not None:
                    column.validate(full=True)
                    column.to_pylist()
    assert 0 < good < 500

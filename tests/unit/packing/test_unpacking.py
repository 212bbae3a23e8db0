"""Reading packs: headers, lines, many at once, in portions; contents of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import CorruptPack
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.packing.chunked_unpack import CHUNK_BYTES, CHUNK_ROWS, unpack_chunks
from mama_spark.packing.codec import ArrowCodec, Codec, LinesCodec, values_of_packs
from mama_spark.packing.compression import PackCompressor
from mama_spark.packing.format import PACK, PACK_ROWS, PACK_TOPIC, BadPack
from mama_spark.packing.gathering.value_lines import values_of_lines
from mama_spark.packing.gathering.value_views import PayloadPlaces
from mama_spark.packing.ipc import read_pack
from mama_spark.packing.pack_headers import FEW_HEADERS, announced_rows, first_values, split_ids
from mama_spark.packing.packer import Rows, packed
from mama_spark.packing.row_contents import contents_of_records, contents_of_rows, row_contents, with_topic_header
from mama_spark.packing.unpacker import unpack
from mama_spark.publishing.ids.ids import digest

from tests.support.memory import arrow_peak_of, peak_of
from tests.support.tables import each
from tests.support.tiers import examples

# --- the first value of a header is the same whether a message comes with few others or with many ---------------------

NAMES = ("Mama-Pack", "Mama-Pack-Rows", "never there")
ENTRIES = st.lists(
    st.tuples(st.sampled_from([*NAMES[:2], "other"]), st.lists(st.text(max_size=3), max_size=2)), max_size=4
)


@examples(60)
@given(st.lists(st.none() | ENTRIES, min_size=1, max_size=6), st.integers(0, 2))
def test_first_values_of_few_and_of_many(maps: list[list[tuple[str, list[str]]] | None], skipped: int) -> None:
    expected = [
        [next((values[0] for key, values in entries or [] if key == name and values), None) for entries in maps]
        for name in NAMES
    ]
    times = FEW_HEADERS + 1
    for some in (pa.array(maps, HEADERS_TYPE), pa.array(maps * times, HEADERS_TYPE)):
        cut = some.slice(skipped)
        for name, found, wanted in zip(NAMES, first_values(cut, *NAMES), expected, strict=True):
            assert found.type == pa.string(), name
            assert found.to_pylist() == (wanted * (len(some) // len(maps)))[skipped:], name


@examples(60)
@given(
    st.lists(st.none() | st.dictionaries(st.sampled_from([MSG_ID, "a", "b"]), st.text(max_size=2)), min_size=1),
    st.integers(0, 2),
)
def test_ids_and_other_headers_of_few_and_of_many(messages: list[dict[str, str] | None], skipped: int) -> None:
    messages = (messages + messages * (FEW_HEADERS if skipped == 2 else 0))[skipped:]
    maps = [None if one is None else [(name, [value]) for name, value in one.items()] for one in messages]
    ids, left = split_ids(pa.array([[("before", ["x"])], *maps], HEADERS_TYPE).slice(1), keep=True)
    assert ids.to_pylist() == [(one or {}).get(MSG_ID) for one in messages]
    others = [[entry for entry in one or [] if entry[0] != MSG_ID] for one in maps]
    assert [one or [] for one in left.to_pylist()] == others
    again, none = split_ids(pa.array(maps, HEADERS_TYPE), keep=False)
    assert (again, none.null_count, none.type) == (ids, len(messages), HEADERS_TYPE)


# --- packs of lines are read together in one copy, and have the lines that Python's split finds -----------------------

WINDOW = 1 << 18  # bytes that the search takes at a time

short = st.binary(max_size=14)  # 12 bytes are the longest that a view contains
long = st.builds(lambda byte, size: byte * size, st.binary(min_size=1, max_size=1), st.integers(13, 9_000))
payloads = st.one_of(st.lists(short, max_size=6), st.lists(short | long, max_size=6), st.lists(long, max_size=3)).map(
    b"\n".join
)
KINDS = [pa.binary(), pa.binary_view(), None]


def places_of(found: list[bytes], kind: pa.DataType | None, before: int = 0) -> PayloadPlaces:
    """The places of payloads in an array of which the first ones are left out, or by themselves."""
    if kind is None:
        return PayloadPlaces.of_each(found)
    column = pa.array([b"left\nout, longer than a view", b"\n", *found, b"behind"], kind)
    return PayloadPlaces.of(column[before:], np.arange(2 - before, 2 - before + len(found)))


def check(found: list[bytes], announced: list[int], places: PayloadPlaces) -> None:
    values, there = values_of_lines(places, np.array(announced, np.int64))
    values.validate(full=True)
    lines = [payload.split(b"\n") for payload in found]
    assert there.tolist() == [*map(len, lines)]
    assert values.to_pylist() == [
        line for some, n in zip(lines, announced, strict=True) if len(some) == n for line in some
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@examples(80)
@given(found=st.lists(payloads, min_size=1, max_size=6), before=st.integers(0, 2), data=st.data())
def test_lines_are_those_of_a_split_where_as_many_are_announced(
    kind: pa.DataType | None, found: list[bytes], before: int, data: st.DataObject
) -> None:
    wrong = st.sampled_from([0, 0, 0, 1, -1, 1_000_000])
    announced = [max(1, payload.count(b"\n") + 1 + data.draw(wrong)) for payload in found]
    check(found, announced, places_of(found, kind, before))


@each("size", [0, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW - 1, 2 * WINDOW])
def test_lines_end_where_the_parts_of_a_search_meet(size: int) -> None:
    whole = bytes(size)
    cut = bytearray(whole)
    for at in (0, WINDOW - 2, WINDOW - 1, WINDOW, 2 * WINDOW - 1, size - 1):
        if 0 <= at < size:
            cut[at] = 10
    for found in ([whole], [bytes(cut)], [whole, b"", bytes(cut), b"a\nb"]):
        check(found, [payload.count(b"\n") + 1 for payload in found], places_of(found, pa.binary_view()))


def read_lines_that_nobody_announced() -> None:
    for announced in (1, 1_000_000):
        values, there = values_of_lines(PayloadPlaces.of_each([b"\n" * (16 << 20)]), np.array([announced]))
        assert (len(values), there.tolist()) == (0, [(16 << 20) + 1])


def test_lines_that_nobody_announced_take_no_memory() -> None:
    assert max(peak_of(read_lines_that_nobody_announced)) < 32 << 20, (
        "the payload is half; places of lines would take 128 MB"
    )


# Packs of nothing but values are read together in one copy, and say what each of them says when it is read alone

values = st.lists(st.binary(min_size=13, max_size=40), min_size=1, max_size=6)


def packs_of(lists: list[list[bytes]], nullable: bool = True) -> list[bytes]:
    schema = pa.schema([pa.field("value", pa.binary(), nullable)])
    codec = ArrowCodec(schema)
    columns = [pa.RecordBatch.from_arrays([pa.array(some, pa.binary())], schema=schema) for some in lists]
    return [codec.encode(rows, np.array([0, rows.num_rows]))[0].as_py() for rows in columns]


def alone(payload: bytes, rows: int) -> list[bytes] | None:
    try:
        return read_pack(pa.py_buffer(payload), rows)["value"].to_pylist()  # type: ignore[no-any-return]
    except BadPack:
        return None


KINDS_OF_PACKS = [pa.binary(), pa.binary_view()]


@pytest.mark.parametrize("kind", KINDS_OF_PACKS, ids=str)
@pytest.mark.parametrize("nullable", [True, False])
@examples(40)
@given(lists=st.lists(values, min_size=1, max_size=5), data=st.data())
def test_packs_as_this_project_writes_them_are_read_together(
    nullable: bool, kind: pa.DataType, lists: list[list[bytes]], data: st.DataObject
) -> None:
    payloads = pa.array([b"left out", b"short", *packs_of(lists, nullable)], kind)[1:]
    at = np.array(sorted(data.draw(st.sets(st.integers(1, len(lists)), min_size=1))))
    found = values_of_packs(payloads, at, np.array([len(lists[i - 1]) for i in at.tolist()]))
    assert found is not None
    found.validate(full=True)
    assert found.to_pylist() == [value for i in at.tolist() for value in lists[i - 1]]


@examples(150)
@given(lists=st.lists(values, min_size=1, max_size=3), kind=st.sampled_from(KINDS_OF_PACKS), data=st.data())
def test_a_changed_pack_is_read_as_it_would_be_alone_or_left_to_that(
    lists: list[list[bytes]], kind: pa.DataType, data: st.DataObject
) -> None:
    payloads, rows = packs_of(lists), [len(some) for some in lists]
    one = data.draw(st.integers(0, len(lists) - 1))
    changed = bytearray(payloads[one])
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    payloads[one] = bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) - 1]))])
    rows[one] += data.draw(st.sampled_from([0, 0, 1, -1]))
    found = values_of_packs(pa.array(payloads, kind), np.arange(len(rows)), np.array(rows))
    if found is not None:
        found.validate(full=True)
        assert found.to_pylist() == [
            v for p, n in zip(payloads, rows, strict=True) for v in (alone(p, n) or [b"cannot be read"])
        ]


def test_offsets_that_overflow_are_left_to_the_reader_that_says_why() -> None:
    (payload,) = packs_of([[b"x" * 20] * 3])
    end = len(payload) - 8 - 64  # three values of 20 bytes, padded to 64
    for offsets in ((0, 2**31 - 1, -(2**31) + 20, -(2**31) + 40), (0, 20, 40, 80), (0, 40, 20, 60), (1, 20, 40, 60)):
        wrong = payload[: end - 16] + np.array(offsets, np.int32).tobytes() + payload[end:]
        assert len(wrong) == len(payload)
        assert values_of_packs(pa.array([wrong], pa.binary()), np.array([0]), np.array([3])) is None
    assert values_of_packs(pa.array([payload], pa.binary()), np.array([0]), np.array([3])) is not None


# Packed messages are unpacked in portions of bounded memory: what they make of a few bytes is never made at once

Message = tuple[str, bytes, list[tuple[str, list[str]]] | None]


def records(*messages: Message) -> Records:
    topics, payloads, headers = zip(*messages, strict=True)
    n = np.arange(len(messages))
    column = pa.array(headers, HEADERS_TYPE)
    return Records(n + 1, n, pa.array(topics, pa.string()), pa.array(payloads, pa.binary()), column)


def lines(values: list[bytes], *headers: tuple[str, list[str]], topic: str = "t", rows: int | None = None) -> Message:
    own = [("Mama-Pack", ["lines;v=1"]), ("Mama-Pack-Rows", [str(len(values) if rows is None else rows)])]
    return topic, b"\n".join(values), [*own, *headers]


plain = st.builds(
    lambda value, headers: ("p", value, headers), st.binary(max_size=9), st.sampled_from([None, [("a", ["b"])]])
)
some_lines = st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=12)
packs = st.builds(lambda values, h: lines(values, *h), some_lines, st.sampled_from([(), (("k", ["v", "w"]),)]))
wrong = st.builds(lambda values: lines(values, rows=len(values) + 1), some_lines)
sizes = st.integers(1, 30)


@given(st.lists(plain | packs | wrong, min_size=1, max_size=12), sizes, sizes, sizes, sizes)
def test_portions_are_all_rows_in_order_whatever_the_limits(
    messages: list[Message], together_bytes: int, together_rows: int, most_rows: int, most_bytes: int
) -> None:
    whole = records(*messages)
    want = unpack(whole)
    limits = {"BATCH_BYTES": together_bytes, "BATCH_ROWS": together_rows, "CHUNK_ROWS": most_rows,
              "CHUNK_BYTES": most_bytes}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(f"mama_spark.packing.chunked_unpack.{name}", value)
        found = list(unpack_chunks(whole))
    sequences = [int(some.sequences[r]) for some, part in found for r in part.records]
    assert sequences == (want.records + 1).tolist()
    assert [i for _, part in found for i in part.index.tolist()] == want.index.tolist()
    assert [v for _, part in found for v in part.values.to_pylist()] == want.values.to_pylist()
    headers = [h for _, p in found for h in ([None] * len(p) if p.headers is None else p.headers.to_pylist())]
    assert headers == ([None] * len(want) if want.headers is None else want.headers.to_pylist())
    first, reasons = 0, {}
    for _, part in found:
        reasons.update({first + row: why for row, why in part.errors.items()})
        first += len(part)
        assert len(part) <= most_rows or not any(h and h[0][0] == "Mama-Pack" for _, _, h in messages)
    assert reasons == want.errors


def test_slices_keep_typed_rows_at_their_places() -> None:
    batch = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    payload = batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
    headers = [("Mama-Pack", ["arrow;v=1"]), ("Mama-Pack-Rows", ["10"])]
    found = unpack(records(lines([b"a", b"b"]), ("t", payload, headers), ("t", payload, headers)))
    part = found.slice(5, 17)
    assert [(run.first, run.columns.column("n").to_pylist()) for run in part.typed] == [
        (0, list(range(3, 10))),
        (7, list(range(5))),
    ]
    assert found.slice(0, 2).typed == []


def unpack_a_bomb_of_headers() -> None:
    """A megabyte that would be 8 GB of headers."""
    bomb = records(lines([b""] * 1_000_000, ("k", ["x" * 8_000]), topic="t" * 100))
    total = 0
    for _, part in unpack_chunks(bomb):
        total += len(part)
        assert len(part) <= CHUNK_ROWS
        if total < 20_000:
            assert part.headers is not None
            assert part.headers.nbytes < 2 * CHUNK_BYTES
    assert total == 1_000_000


def test_headers_that_a_million_empty_rows_share_are_not_copied_at_once() -> None:
    assert arrow_peak_of(unpack_a_bomb_of_headers) < 200 << 20, "of 8 GB"


def test_announced_rows_are_no_more_than_the_bytes_can_hold() -> None:
    found = announced_rows(
        records(lines([b"a"] * 3), lines([b"a"], rows=1_000_000), lines([b"a"], rows=-1), ("p", b"", None))
    )
    assert found.tolist() == [3, 9, 1, 1]
    assert announced_rows(records(("p", b"x", None))).tolist() == [1]


# --- The content of a row is the same in every pack, and differs between rows that differ -----------------------------

SCHEMA = pa.schema(
    {
        "text": pa.string(), "number": pa.int32(), "flag": pa.bool_(), "list": pa.list_(pa.float64()),
        "map": pa.map_(pa.string(), pa.list_(pa.int8())), "struct": pa.struct({"a": pa.int64(), "b": pa.binary()}),
    }
)  # fmt: skip
texts = st.sampled_from(["", "a", "ab", "b"])
row = st.fixed_dictionaries(
    {
        "text": st.none() | texts,
        "number": st.none() | st.integers(0, 1),
        "flag": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | st.sampled_from([0.0, 1.5]), max_size=2),
        "map": st.none() | st.dictionaries(texts, st.none() | st.lists(st.integers(0, 1), max_size=2), max_size=2),
        "struct": st.none()
        | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | st.just(b"")}),
    }
)
rows = st.lists(row, min_size=1, max_size=6)


def batch_of(some: list[dict[str, Any]]) -> pa.RecordBatch:
    pairs = [{**one, "map": None if one["map"] is None else list(one["map"].items())} for one in some]
    return pa.RecordBatch.from_pylist(pairs, SCHEMA)


@given(rows)
def test_rows_have_equal_contents_if_and_only_if_they_are_equal(some: list[dict[str, Any]]) -> None:
    batch = batch_of(some)
    contents = row_contents(batch).to_pylist()
    for i in range(len(some)):
        assert row_contents(batch.slice(i, 1)).to_pylist() == [contents[i]]
        for j in range(i):
            equal = batch.slice(i, 1).to_pylist() == batch.slice(j, 1).to_pylist()
            assert (contents[i] == contents[j]) == equal


@given(rows, st.integers(1, 6), st.booleans())
def test_a_row_is_recognised_in_another_pack_that_was_read(
    some: list[dict[str, Any]], cut: int, compressed: bool
) -> None:
    batch, codec = batch_of(some), ArrowCodec(SCHEMA)
    numbers, n = np.arange(len(some)), len(some)
    topics = pa.array(["t"] * n).dictionary_encode()
    parts = pa.RecordBatch.from_arrays([pa.array(["ROOT"] * n)], ["Mama-Root"])
    come = Rows(topics, batch, numbers, parts=parts)
    starts = np.unique([*range(0, n, cut), n])
    other = packed(codec, replace(come, columns=codec.normal(batch)), starts)
    sent: MessageBatch = PackCompressor("zstd").compress(other.batch) if compressed else other.batch
    k = len(sent)
    sent = with_topic_header(sent)
    read = Records(np.arange(k), np.zeros(k, np.int64), sent.topics, sent.payloads, sent.headers)
    contents, counts = contents_of_records(codec, read)
    assert counts.tolist() == np.diff(starts).tolist()
    assert digest(contents).tolist() == digest(contents_of_rows(codec, come)).tolist()


VALUES = pa.schema([("value", pa.binary())])
LONG = [b"first of three values", b"second of three values", b"third of three values"]
LINES, ARROW = LinesCodec(), ArrowCodec(VALUES)


def record_of(payload: bytes, form: str, rows: str) -> Records:
    headers = pa.array([[(PACK, [form]), (PACK_ROWS, [rows]), (PACK_TOPIC, ["t"])]], HEADERS_TYPE)
    return Records(np.array([1]), np.array([0]), pa.array(["t"]), pa.array([payload], pa.binary()), headers)


@each("codec", [LINES, ARROW])
@each("kind", [pa.binary(), pa.binary_view()])
def test_rows_of_several_packs_are_decoded_in_their_order(codec: Codec, kind: pa.DataType) -> None:
    rows = pa.record_batch([pa.array(LONG, pa.binary())], schema=VALUES)
    counts = np.array([2, 1])
    payloads = codec.encode(codec.normal(rows), np.array([0, 2, 3])).cast(kind)
    assert codec.decode(payloads, counts).column("value").to_pylist() == LONG
    before = pa.concat_arrays([pa.array([b"before"], kind), payloads])[1:]
    assert codec.decode(before, counts).column("value").to_pylist() == LONG


@each("codec", [LINES, ARROW])
@each("announced", ["2", "4", "0", "-3", "x", "1000000000000000", "99999999999999999999"])
def test_a_pack_with_another_number_of_rows_than_it_announces_is_corrupt(codec: Codec, announced: str) -> None:
    """The number is compared before it costs memory."""
    rows = pa.record_batch([pa.array(LONG, pa.binary())], schema=VALUES)
    (payload,) = codec.encode(codec.normal(rows), np.array([0, 3])).to_pylist()
    good, _ = contents_of_records(codec, record_of(payload, codec.format.value, "3"))
    assert len(good) == 3
    with pytest.raises(CorruptPack, match="cannot be unpacked as it was packed"):
        contents_of_records(codec, record_of(payload, codec.format.value, announced))

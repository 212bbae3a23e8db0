"""Whatever is packed comes out again: each row once, equal, in the order of its topic, within the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import SchemaError
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.contracts.record_log import Records
from mama_spark.packing.codec import codec_of
from mama_spark.packing.packer import STORED, Packed, Packer, Rows
from mama_spark.packing.split import halves, singles
from mama_spark.packing.unpacked import Unpacked
from mama_spark.packing.unpacker import unpack

from tests.support.memory import arrow_peak_of
from tests.support.tables import each
from tests.support.tiers import examples

Row = dict[str, Any]

MESSAGES = pa.schema([("value", pa.binary()), ("headers", HEADERS_TYPE), ("id", pa.string())])
TYPED = pa.schema(
    [
        ("n", pa.int64()), ("price", pa.decimal128(12, 2)), ("text", pa.string()), ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")), ("legs", pa.list_(pa.struct([("side", pa.string()), ("qty", pa.int32())]))),
        ("tags", pa.map_(pa.string(), pa.float64())),
    ]
)  # fmt: skip
LINES = pa.schema([("value", pa.binary())])

value = st.binary(max_size=40)
line = value.map(lambda v: v.replace(b"\n", b"\r"))
text = st.text(max_size=8)
headers = st.none() | st.lists(st.tuples(text, st.lists(text, max_size=2)), max_size=2)
decimals = st.none() | st.decimals(-1000, 1000, places=2)
times = st.none() | st.integers(-(2**40), 2**50).map(lambda us: np.datetime64(us, "us").astype(object))
legs = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"side": st.none() | text, "qty": st.none() | st.integers(-5, 5)}), max_size=3
)
tags = st.none() | st.lists(st.tuples(text, st.none() | st.floats(allow_nan=False)), max_size=2)

KINDS: dict[str, tuple[str, pa.Schema, st.SearchStrategy[Row]]] = {
    "lines": ("lines", LINES, st.fixed_dictionaries({"value": line})),
    "arrow": ("arrow", MESSAGES, st.fixed_dictionaries({"value": value, "headers": headers, "id": st.none() | text})),
    "typed": (
        "arrow", TYPED, st.fixed_dictionaries({
            "n": st.none() | st.integers(-(2**63), 2**63 - 1), "price": decimals, "text": st.none() | text,
            "flag": st.none() | st.booleans(), "at": times, "legs": legs, "tags": tags,
        }),
    ),
}  # fmt: skip


def rows_of(topics: Sequence[str], rows: Sequence[Row], schema: pa.Schema, first: int = 0) -> Rows:
    return Rows(
        pa.array(topics, pa.string()).dictionary_encode(),
        pa.RecordBatch.from_pylist(rows, schema=schema),
        np.arange(first, first + len(rows)),
    )


def records(batch: MessageBatch) -> Records:
    n = np.arange(len(batch))
    return Records(n, n, batch.topics, batch.payloads, batch.headers)


def pack(packer: Packer, batches: Sequence[Rows]) -> list[Packed]:
    return [p for batch in batches for p in packer.add(batch)] + list(packer.finish())


def typed_rows(found: Unpacked) -> list[Row]:
    rows: list[Row] = []
    for run in found.typed:
        assert run.first == len(rows)
        rows += run.columns.to_pylist()
    return rows


def lists_of(columns: dict[str, pa.Array | None], n: int) -> list[Row]:
    lists = {name: [None] * n if column is None else column.to_pylist() for name, column in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def message_rows(found: Unpacked, schema: pa.Schema) -> list[Row]:
    columns = {"value": found.values, "headers": found.headers, "id": found.ids}
    return lists_of({name: columns[name] for name in schema.names}, len(found))


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(data=st.data())
def test_what_is_packed_is_unpacked_row_for_row_in_the_order_of_its_topic(kind: str, data: st.DataObject) -> None:
    pack_option, schema, row = KINDS[kind]
    given_rows = data.draw(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), row), max_size=60))
    max_rows, max_bytes = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([64, 200, 2_000, 65_536]))
    gather, step = data.draw(st.sampled_from([1, 500, 1 << 20])), data.draw(st.integers(1, 25))
    codec = codec_of(pack_option, schema)
    packer = Packer(codec, max_rows=max_rows, max_bytes=max_bytes, max_waiting=gather)
    batches = [
        rows_of([t for t, _ in part], [r for _, r in part], schema, first)
        for first in range(0, len(given_rows), step)
        for part in [given_rows[first : first + step]]
    ]
    got: dict[str, list[Row]] = {}
    numbers: dict[str, list[int]] = {}
    for packed in pack(packer, batches):
        found = unpack(records(packed.batch))
        assert not found.errors
        assert (packed.rows <= max_rows).all()
        assert ((packed.batch.sizes() <= max_bytes) | (packed.rows == 1)).all()
        assert np.bincount(found.records, minlength=len(packed)).tolist() == packed.rows.tolist()
        assert found.index.tolist() == [i for n in packed.rows.tolist() for i in range(n)]
        rows = typed_rows(found) if kind == "typed" else message_rows(found, schema)
        topics = packed.batch.topics.to_pylist()
        for record, one, number in zip(found.records.tolist(), rows, packed.numbers.tolist(), strict=True):
            got.setdefault(topics[record], []).append(one)
            numbers.setdefault(topics[record], []).append(number)
    table = pa.RecordBatch.from_pylist([r for _, r in given_rows], schema=schema).to_pylist()
    for topic in {t for t, _ in given_rows} | got.keys():
        mine = [i for i, (t, _) in enumerate(given_rows) if t == topic]
        assert got[topic] == [table[i] for i in mine]
        assert numbers[topic] == mine
    assert packer.nbytes == 0


def orders(n: int, topics: int, width: int = 100, first: int = 0) -> Rows:
    codes = (np.arange(first, first + n) * 7919 % topics).astype(np.int32)
    names = pa.array([f"t.{i}" for i in range(topics)])
    values = pa.array([b"%0*d" % (width, i) for i in range(first, first + n)])
    numbers = np.arange(first, first + n)
    return Rows(
        pa.DictionaryArray.from_arrays(pa.array(codes), names),
        pa.RecordBatch.from_arrays([values], ["value"]),
        numbers,
        extra=pa.RecordBatch.from_arrays([pa.array(numbers)], ["k"]),
    )


@pytest.mark.parametrize("option", ["lines", "arrow"])
def test_packs_are_filled_to_the_limit(option: str) -> None:
    packer = Packer(codec_of(option, LINES), max_rows=10_000, max_bytes=65_536)
    sizes = np.concatenate([p.batch.sizes() for p in packer.add(orders(70_000, 1))])
    assert len(sizes) > 20
    assert sizes.max() <= 65_536
    assert sizes.min() > 65_536 - 300


@each("most", [64 << 10, 256 << 10])
@each("option", ["lines", "arrow"])
def test_what_is_cut_together_is_one_block(option: str, most: int) -> None:
    packer = Packer(codec_of(option, LINES), max_rows=1_000, max_bytes=most)
    blocks = [len(list(packer.add(orders(4_000, 16, width=1_000, first=n)))) for n in range(0, 40_000, 4_000)]
    assert sum(blocks) == 2, "each costs time beside its rows"
    assert max(blocks) == 1


@pytest.mark.parametrize("option", ["lines", "arrow"])
def test_ten_thousand_topics_stay_within_the_budget_and_the_largest_packs_go_first(option: str) -> None:
    gather = 1 << 20
    packer = Packer(codec_of(option, LINES), max_rows=1_000, max_bytes=65_536, max_waiting=gather)
    sent, most = 0, 0
    for start in range(0, 60_000, 5_000):
        cold = orders(5_000, 10_000, first=start)
        few = replace(orders(50, 1), topics=pa.array(["hot"] * 50).dictionary_encode())
        for rows in (cold, few):
            packs = list(packer.add(rows))
            gone = {t for p in packs for t in p.batch.topics.to_pylist()}
            if packs and not sent:  # the budget is passed for the first time
                assert "hot" in gone
                assert len(gone) < 9_000
            sent += sum(int(p.rows.sum()) for p in packs)
            most = max(most, packer.nbytes)
    assert most <= gather
    assert sent > 30_000
    assert sent + sum(int(p.rows.sum()) for p in packer.finish()) == 60_600


def pack_many_topics() -> None:
    packer = Packer(codec_of("arrow", LINES), max_rows=1_000, max_bytes=65_536)
    sent = 0
    for start in range(0, 200_000, 10_000):
        sent += sum(int(p.rows.sum()) for p in packer.add(orders(10_000, 10_000, width=1_000, first=start)))
    assert sent + sum(int(p.rows.sum()) for p in packer.finish()) == 200_000


def test_what_ten_thousand_topics_take_in_memory_is_bounded_whatever_the_partition_holds() -> None:
    assert arrow_peak_of(pack_many_topics) < 120 << 20, "of 200 MB"


def test_columns_beside_the_packs_stay_with_their_rows() -> None:
    packer = Packer(codec_of("lines", LINES), max_rows=9, max_bytes=700)
    seen = 0
    for packed in pack(packer, [orders(1_000, 13), orders(1_000, 13, first=1_000)]):
        assert packed.extra is not None
        values = unpack(records(packed.batch)).values.to_pylist()
        assert [int(v) for v in values] == packed.extra["k"].to_pylist() == packed.numbers.tolist()
        seen += len(values)
    assert seen == 2_000


def test_rows_of_different_streams_and_parts_never_share_a_pack() -> None:
    n = 60
    parts = {"Mama-Source": [None, "x"] * (n // 2), "Mama-Symbol": ["x.y", "y"] * (n // 2)}
    rows = replace(
        rows_of(["x.y"] * n, [{"value": b"%d" % i} for i in range(n)], LINES),
        streams=pa.array([f"s{i % 3}" for i in range(n)]).dictionary_encode(),
        parts=pa.record_batch(parts),
    )
    (packed,) = pack(Packer(codec_of("arrow", LINES), max_rows=100, max_bytes=65_536), [rows])
    assert packed.rows.tolist() == [10] * 6
    assert packed.batch.streams is not None
    assert packed.batch.headers is not None
    for stream, entries, start in zip(packed.batch.streams.to_pylist(), packed.batch.headers.to_pylist(),
                                      packed.starts.tolist(), strict=False):  # fmt: skip
        mine = packed.numbers[start : start + 10]
        assert {f"s{i % 3}" for i in mine.tolist()} == {stream}
        (odd,) = {i % 2 for i in mine.tolist()}
        own = {name: values for name, values in entries if name.startswith("Mama-S")}
        assert own == ({"Mama-Source": ["x"], "Mama-Symbol": ["y"]} if odd else {"Mama-Symbol": ["x.y"]})
    found = unpack(records(packed.batch))
    assert found.headers is not None
    assert {str(h) for h in found.headers.to_pylist()} == {
        "[('Mama-Source', ['x']), ('Mama-Symbol', ['y'])]",
        "[('Mama-Symbol', ['x.y'])]",
    }


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(data=st.data())
def test_rejected_packs_are_split_into_halves_and_single_rows(kind: str, data: st.DataObject) -> None:
    option, schema, row = KINDS[kind]
    rows = data.draw(st.lists(row, min_size=2, max_size=20))
    codec = codec_of(option, schema)
    (packed,) = pack(Packer(codec, max_rows=100, max_bytes=1 << 20), [rows_of(["t"] * len(rows), rows, schema)])
    split = halves(codec, packed, np.array([0]))
    assert split.rows.tolist() == [len(rows) // 2, len(rows) - len(rows) // 2]
    assert split.numbers.tolist() == list(range(len(rows)))
    whole, parts = unpack(records(packed.batch)), unpack(records(split.batch))
    assert not parts.errors
    assert typed_rows(whole) == typed_rows(parts)
    assert whole.values.to_pylist() == parts.values.to_pylist()
    alone, of = singles(packed.batch)
    assert of.tolist() == [0] * len(rows)
    assert alone.ids is not None
    if kind == "typed":
        assert typed_rows(unpack(records(alone))) == typed_rows(whole)
    else:
        columns = {"value": alone.payloads, "headers": alone.headers, "id": alone.ids}
        assert message_rows(whole, schema) == lists_of({name: columns[name] for name in schema.names}, len(rows))


@each(
    ("option", "schema"),
    [
        ("lines", MESSAGES),
        ("arrow", pa.schema([("nothing", pa.null())])),
        ("arrow", pa.schema([("empty", pa.struct([]))])),
        ("arrow", pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))])),
        ("arrow", pa.schema([])),
    ],
)
def test_columns_that_cannot_travel_are_refused_before_anything_is_packed(option: str, schema: pa.Schema) -> None:
    with pytest.raises(SchemaError):
        codec_of(option, schema)


SECRETS = pa.schema([("text", pa.string()), ("n", pa.int32()), ("tags", pa.list_(pa.string())), ("flag", pa.bool_())])


def secret_rows(schema: pa.Schema, n: int) -> list[Row]:
    rows = [{"text": f"x{i}", "n": i, "tags": [str(i)], "flag": i % 3 == 0} for i in range(n)]
    return rows if schema is SECRETS else [{"value": b"%d" % i * (4 + 20 * (i % 2))} for i in range(n)]


@pytest.mark.parametrize("schema", [LINES, SECRETS], ids=["value", "typed"])
def test_a_pack_has_the_bytes_of_its_rows_and_no_others(schema: pa.Schema) -> None:
    """Whoever may read one topic learns nothing of others, and ids do not depend on what lies behind a row."""
    n = 55
    rows = secret_rows(schema, n)
    topics = [f"t{i % 4}" for i in range(n)]
    codec = codec_of("arrow", schema)
    table = pa.RecordBatch.from_pylist(rows, schema=schema)
    for packed in pack(Packer(codec, max_rows=5, max_bytes=65_536), [rows_of(topics, rows, schema)]):
        for i, payload in enumerate(packed.batch.payloads.to_pylist()):
            mine = packed.numbers[packed.starts[i] : packed.starts[i + 1]]
            alone = table.take(pa.array(mine))
            assert [payload] == codec.encode(alone, np.array([0, len(mine)])).to_pylist()


@pytest.mark.parametrize("option", ["lines", "arrow"])
def test_packs_do_not_depend_on_the_batches_in_which_their_rows_came(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a retry whose rows come in other batches makes the same packs, and the same ids."""
    monkeypatch.setattr("mama_spark.packing.packer.CUT_ROWS", 90)

    def payloads(step: int) -> set[tuple[str, bytes]]:
        packer = Packer(codec_of(option, LINES), max_rows=50, max_bytes=3_000)
        batches = [whole.slice(i, min(step, len(whole) - i)) for i in range(0, len(whole), step)]
        packs = pack(packer, batches)
        return {pair for p in packs for pair in zip(p.batch.topics.to_pylist(), p.batch.payloads.to_pylist(),
                                                    strict=True)}  # fmt: skip

    whole = orders(2_000, 7)
    assert payloads(2_000) == payloads(130) == payloads(37)


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(data=st.data())
def test_rows_that_are_stored_already_move_no_cut(kind: str, data: st.DataObject) -> None:
    """So that a pack of which nothing is stored has the id that it had before."""
    option, schema, row = KINDS[kind]
    topics, some = data.draw(st.lists(st.sampled_from("abc"), max_size=40)), st.tuples(row, st.booleans())
    rows, stored = zip(*[data.draw(some) for _ in topics], strict=True) if topics else ((), ())
    whole = rows_of(topics, rows, schema)
    left = replace(whole, numbers=np.where(np.array(stored, np.bool_), STORED, whole.numbers))
    step = data.draw(st.integers(1, 25))

    def packs(come: Rows) -> list[tuple[list[int], bytes]]:
        packer = Packer(codec_of(option, schema), max_rows=5, max_bytes=data_bytes, max_waiting=gather)
        made = pack(packer, [come.slice(i, min(step, len(come) - i)) for i in range(0, len(come), step)])
        return [
            (numbers.tolist(), payload)
            for p in made
            for numbers, payload in zip(np.split(p.numbers, p.starts[1:-1]), p.batch.payloads.to_pylist(), strict=True)
        ]

    data_bytes, gather = data.draw(st.sampled_from([64, 200, 2_000])), data.draw(st.sampled_from([1, 500, 1 << 20]))
    before, now = packs(whole), packs(left)
    rest = [[n for n in numbers if not stored[n]] for numbers, _ in before]
    assert [numbers for numbers, _ in now] == [numbers for numbers in rest if numbers]
    untouched = [pair for pair in before if pair[0] and not any(stored[n] for n in pair[0])]
    assert [pair for pair in now if pair in untouched] == untouched


@pytest.mark.parametrize("option", ["lines", "arrow"])
@examples(60)
@given(data=st.data())
def test_values_that_are_gathered_in_one_copy_make_the_payloads_of_values_that_lie_side_by_side(
    option: str, data: st.DataObject
) -> None:
    value = st.binary(min_size=13, max_size=60).map(lambda v: v.replace(b"\n", b"\r"))
    columns = [pa.array(some, pa.binary()) for some in data.draw(st.lists(st.lists(value, min_size=1), min_size=1))]
    cut = data.draw(st.integers(0, len(columns[0]) - 1))
    columns[0] = columns[0].slice(cut)
    n = sum(map(len, columns))
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40)))
    inner = data.draw(st.sets(st.integers(1, max(1, len(index) - 1)), max_size=5)) if len(index) > 1 else set()
    starts = np.array(sorted({0, len(index), *inner}))
    codec = codec_of(option, LINES)
    batches = [pa.RecordBatch.from_arrays([column], schema=LINES) for column in columns]
    views = codec.views(batches)
    assert views is not None
    side_by_side = pa.RecordBatch.from_arrays([pa.concat_arrays(columns).take(pa.array(index))], schema=LINES)
    made = codec.encode_views(views.take(index), starts)
    made.validate(full=True)
    assert made.equals(codec.encode(side_by_side, starts))


def test_short_values_and_nulls_are_not_gathered() -> None:
    codec = codec_of("arrow", LINES)
    for values in ([b"x" * 20, b"x" * 12], [b"x" * 20, None]):
        assert codec.views([pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=LINES)]) is None

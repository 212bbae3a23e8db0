"""What a row becomes as JSON: each value reads back as the same value, or its row is refused with a reason."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.packing.json_text import as_json_column, json_rows, with_number_names

from tests.support.tables import each

EPOCH = datetime.datetime(1970, 1, 1)
#: A leaf type, values of it (times are numbers since the epoch), and what a reader makes of the JSON of one.
Leaf = tuple[pa.DataType, st.SearchStrategy[Any]]
FLOATS = [0.1, 1 / 3, 1e-45, 3.4028234663852886e38, 16_777_217.0, float("nan"), float("inf"), -float("inf"), -0.0]


def _micros(text: str) -> int:
    return (datetime.datetime.fromisoformat(text.removesuffix("Z")) - EPOCH) // datetime.timedelta(microseconds=1)


def _interval(text: str) -> int:
    found = re.fullmatch(r"INTERVAL '(-?)(\d+) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?' DAY TO SECOND", text)
    assert found is not None
    days, hours, minutes, seconds = map(int, found.group(2, 3, 4, 5))
    size = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000 + int((found[6] or "0").ljust(6, "0"))
    return -size if found[1] else size


def _clock(text: str) -> int:
    at = datetime.time.fromisoformat(text)
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000 + at.microsecond


LEAVES: list[Leaf] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(1 << 7), (1 << 7) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float32(), st.floats(width=32) | st.sampled_from([struct.unpack("f", struct.pack("f", x))[0] for x in FLOATS])),
    (pa.float64(), st.floats() | st.sampled_from(FLOATS)),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, allow_nan=False, places=18)),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.date32(), st.integers(-800_000, 3_000_000)),
    (pa.timestamp("us", "UTC"), st.integers(-70_000_000 * 10**9, 260_000_000 * 10**9)),
    (pa.timestamp("us", "Europe/Paris"), st.integers(-60_000_000 * 10**9, 250_000_000 * 10**9)),
    (pa.timestamp("us"), st.integers(-70_000_000 * 10**9, 260_000_000 * 10**9)),
    (pa.timestamp("ns", "UTC"), st.integers(-(1 << 62), 1 << 62)),
    (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    (pa.duration("us"), st.integers(-(1 << 62), 1 << 62)),
]


def columns() -> st.SearchStrategy[tuple[pa.DataType, list[Any]]]:
    """A type and rows of it."""

    def nested(inner: st.SearchStrategy[Leaf]) -> st.SearchStrategy[Leaf]:
        return inner.flatmap(
            lambda leaf: st.sampled_from(
                [
                    (pa.list_(leaf[0]), st.lists(st.none() | leaf[1], max_size=3)),
                    (pa.map_(pa.string(), leaf[0]), st.dictionaries(st.text(), leaf[1], max_size=3).map(_pairs)),
                    (
                        pa.struct([("a", leaf[0]), ("none", pa.struct([]))]),
                        st.fixed_dictionaries({"a": st.none() | leaf[1], "none": st.none() | st.just({})}),
                    ),
                ]
            )
        )

    leaves: st.SearchStrategy[Leaf] = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=3)
    return leaves.flatmap(
        lambda leaf: st.tuples(st.just(leaf[0]), st.lists(st.none() | leaf[1], min_size=1, max_size=5))
    )


def _pairs(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(found.items())


def read(kind: pa.DataType, found: Any) -> Any:
    """The value that the JSON says, as :func:`columns` makes values."""
    if found is None:
        return None
    if pa.types.is_floating(kind):
        return (np.float32 if kind == pa.float32() else float)(str(found))
    if pa.types.is_decimal(kind):
        return Decimal(found)
    if pa.types.is_binary(kind):
        return base64.b64decode(found, validate=True)
    if pa.types.is_date(kind):
        return (datetime.date.fromisoformat(found) - EPOCH.date()).days
    if pa.types.is_timestamp(kind):
        assert found.endswith("Z") == (kind.tz is not None)
        return _micros(found) * (1000 if kind.unit == "ns" else 1)
    if pa.types.is_time(kind):
        return _clock(found) * 1000
    if pa.types.is_duration(kind):
        return _interval(found)
    if pa.types.is_map(kind):
        return [(key, read(kind.item_type, value)) for key, value in found.items()]
    if pa.types.is_struct(kind):
        return {f.name: read(f.type, found[f.name]) for f in kind}
    if pa.types.is_list(kind):
        return [read(kind.value_type, value) for value in found]
    return found


def same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to NaN, and -0.0 another number than 0.0."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def parsed(text: bytes) -> Any:
    """Strict JSON: Python's own reader takes ``NaN`` without quotes."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


@given(columns())
def test_a_value_reads_back_as_the_same_value_or_its_row_is_refused(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    batch = pa.record_batch({"x": pa.array(values, kind)})
    texts, refused = json_rows(batch, ["x"])
    assert len(texts) == len(values)
    for row, value in enumerate(values):
        if row in refused:
            assert re.search(r"column 'x' cannot be JSON: (a date or time is not in the years|Casting)", refused[row])
        else:
            assert same(read(kind, parsed(texts[row].as_py())["x"]), value)


def test_the_form_of_each_type() -> None:
    when, names = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901), 'quote " and \n and é \0 \U0001f600'
    forms: dict[str, tuple[pa.Array, Any]] = {
        "n": (pa.array([None], pa.int32()), None),
        "i": (pa.array([2**53 + 1]), 2**53 + 1),
        "d": (pa.array([Decimal("12345678901234567890.10")]), Decimal("12345678901234567890.10")),
        "nan": (pa.array([float("nan")]), "NaN"),
        "inf": (pa.array([[float("inf"), -float("inf"), None]]), ["Infinity", "-Infinity", None]),
        "f": (pa.array([0.1], pa.float32()), Decimal("0.1")),
        "fs": (pa.array([[0.1, None]], pa.list_(pa.float32())), [Decimal("0.1"), None]),
        "bin": (pa.array([b"\xff\x00"]), "/wA="),
        "ts": (pa.array([when], pa.timestamp("us", "UTC")), "2026-01-02T03:04:05.678901Z"),
        "ntz": (pa.array([when], pa.timestamp("us")), "2026-01-02T03:04:05.678901"),
        "day": (pa.array([datetime.date(1582, 10, 10)]), "1582-10-10"),
        "s": (pa.array([{"x": None, "y": [Decimal("1.50"), None]}]), {"x": None, "y": [Decimal("1.50"), None]}),
        "m": (pa.array([[("k", b"z"), ("l", None)]], pa.map_(pa.string(), pa.binary())), {"k": "eg==", "l": None}),
        "text": (pa.array([names]), names),
        "flag": (pa.array([True]), True),
        "for": (
            pa.array([datetime.timedelta(days=-1, hours=-2, microseconds=-50)]),
            "INTERVAL '-1 02:00:00.00005' DAY TO SECOND",
        ),
    }
    texts, refused = json_rows(pa.record_batch({name: column for name, (column, _) in forms.items()}), list(forms))
    (text,) = texts.to_pylist()
    assert not refused
    assert b'"d":12345678901234567890.10,' in text
    assert b'"f":0.1,"fs":[0.1,null]' in text
    assert parsed(text) == {name: form for name, (_, form) in forms.items()}


def test_times_of_any_session_time_zone_are_written_in_utc() -> None:
    """Also of years when the zone's offset had seconds, and within structures."""
    times = pa.array([-2_208_988_800_000_001, 1_792_885_800_000_000], pa.timestamp("us", "Europe/Paris"))
    days = pa.StructArray.from_arrays([times], ["at"])
    texts, refused = json_rows(pa.record_batch({"t": times, "s": days}), ["t", "s"])
    assert not refused
    wanted = ["1899-12-31T23:59:59.999999Z", "2026-10-24T23:50:00Z"]
    assert [parsed(text) for text in texts.to_pylist()] == [{"t": at, "s": {"at": at}} for at in wanted]


@each(
    ("column", "reason"),
    [
        (pa.array([b"a", b"\xff", None]).view(pa.string()), "its text is not UTF-8"),
        (pa.array([0, 1 << 61, None], pa.int64()).cast(pa.timestamp("us")), "a date or time is not in the years 1 to"),
        (pa.array([0, 1 << 61, None], pa.int64()).cast(pa.timestamp("s")), "a date or time is not in the years 1 to"),
        (pa.array([1000, 1, None], pa.int64()).cast(pa.time64("ns")), "would lose data"),
        (pa.array([[], [("k", 1), ("k", 2)], None], pa.map_(pa.string(), pa.int8())), "a map has one key twice"),
        (pa.array([[], [(1, 2)], None], pa.map_(pa.int8(), pa.int8())), "a map has keys that are not strings"),
    ],
)
def test_a_value_without_json_refuses_its_row_alone(column: pa.Array, reason: str) -> None:
    rows = pa.record_batch({"good": [1, 2, 3], "bad": column})
    texts, refused = json_rows(rows, ["good", "bad"])
    assert refused.keys() == {1}
    assert "column 'bad' cannot be JSON: " in refused[1]
    assert reason in refused[1]
    assert [parsed(text)["good"] for text in texts.to_pylist()] == [1, 2, 3]
    assert parsed(texts[0].as_py())["bad"] is not None
    with pytest.raises(ValueError, match="row 1: column 'bad' cannot be JSON"):
        as_json_column(rows)


def test_numbers_without_a_json_form_have_their_names_at_any_depth() -> None:
    finite = np.array([1.0, 2.0])
    named = with_number_names({"a": [1.0, (math.nan, {"b": -math.inf})], "c": np.array([1.0, np.inf]), "d": finite})
    assert named == {"a": [1.0, ["NaN", {"b": "-Infinity"}]], "c": [1.0, "Infinity"], "d": finite}


def test_rows_without_columns_have_no_json() -> None:
    assert json_rows(pa.record_batch({"a": [1]}), []).texts.to_pylist() == []

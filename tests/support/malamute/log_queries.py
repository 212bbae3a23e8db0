"""Strategies for log queries about stored streams."""

from __future__ import annotations

from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    Op,
    Selection,
)

NAMES = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"?"))


U63 = st.integers(0, 2**63 - 1)


U32 = st.integers(0, 2**32 - 1)


TEXTS = st.lists(st.binary(max_size=20), max_size=4).map(tuple)


FETCHES = st.builds(
    lambda op, number, stream, a, b, c, d, texts, kind: LogQuery(op, number, stream, (a, b, c, d), b"", kind, texts),
    st.sampled_from((Op.FETCH, Op.STANDING, Op.BLOCK)), U32, NAMES, U63, U63, U32, U32, TEXTS,
    st.sampled_from((Selection.SUBJECTS, Selection.PATTERNS)),
)  # fmt: skip


QUESTIONS = st.one_of(
    FETCHES,
    st.builds(
        lambda n, s, a, b, most, texts: LogQuery(Op.MATCH, n, s, (a, b, most), b"", Selection.SUBJECTS, texts),
        U32,
        NAMES,
        U63,
        U63,
        U32,
        TEXTS,
    ),
    st.builds(
        lambda n, s, a, b, rows, text, texts: LogQuery(
            Op.IDS, n, s, (a, b, rows, rows), text, Selection.PATTERNS if texts else Selection.ALL, texts
        ),
        U32,
        NAMES,
        U63,
        U63,
        U32,
        NAMES,
        TEXTS,
    ),
    st.builds(lambda n, text: LogQuery(Op.NAMES, n, b"", (), text), U32, NAMES),
    st.builds(lambda n, s: LogQuery(Op.BOUNDS, n, s), U32, NAMES),
    st.builds(lambda n, s, t: LogQuery(Op.AT, n, s, (t,)), U32, NAMES, st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda n, s, a, b: LogQuery(Op.MISSING, n, s, (a, b)), U32, NAMES, U63, U63),
    st.builds(lambda n, s, a, t: LogQuery(Op.TRIM, n, s, (a,), t), U32, NAMES, U63, NAMES),
)


def bounds(number: int, stream: bytes = b"s") -> LogQuery:
    return LogQuery(Op.BOUNDS, number, stream)


RECORD = wire.encode(wire.StreamDeliver(b"s", b"", b"t", [b"one"]))

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.nats.protocol.acks import AckColumns, BulkReader

INBOX = b"_INBOX.abc."


def ack(
    token: int, seq: int, stream: str = "S", *, duplicate: bool = False, domain: str = "", space: str = ""
) -> bytes:
    """:param space: servers before 2.12 write one"""
    body = f'{{"stream":"{stream}"' + (f',{space}"domain":"{domain}"' if domain else "") + f',{space}"seq":{seq}'
    body += ',"duplicate": true}' if duplicate else "}"
    return b"MSG %s%012d 1 %d\r\n%s\r\n" % (INBOX, token, len(body.encode()), body.encode())


def read(data: bytes) -> tuple[int, dict[str, list[tuple[int, int, bool]]]]:
    out: list[AckColumns] = []
    at = BulkReader(INBOX).read(data, 0, out)
    told: dict[str, list[tuple[int, int, bool]]] = {}
    for c in out:
        columns = [np.concatenate(x).tolist() for x in (c.tokens, c.sequences, c.duplicates)]
        place = c.stream if c.domain is None else f"{c.stream} in {c.domain}"
        told.setdefault(place, []).extend(zip(*columns, strict=True))
    return at, told


ACKS = st.lists(
    st.tuples(
        st.integers(0, 10**12 - 1),
        st.integers(0, 10**18 - 1) | st.integers(90, 110),
        st.sampled_from(["S", "T", "Ünder"]),
        st.booleans(),
        st.sampled_from(["", "hub"]),
        st.sampled_from(["", " "]),
    ),
    max_size=60,
)


@given(ACKS, st.integers(1, 30))
def test_bulk_reading_gives_each_acknowledgement_once(acks, repeat) -> None:  # type: ignore[no-untyped-def]
    rows = [a for a in acks for _ in range(repeat if a[1] % 3 == 0 else 1)]
    data = b"".join(ack(t, q, s, duplicate=d, domain=m, space=x) for t, q, s, d, m, x in rows)
    at, told = read(data)
    assert at == len(data)
    for stream, domain in {(r[2], r[4]) for r in rows}:
        place = f"{stream} in {domain}" if domain else stream
        assert sorted(told[place]) == sorted((t, q, d) for t, q, s, d, m, _ in rows if (s, m) == (stream, domain))


def test_errors_and_strangers_are_left_for_the_slow_path() -> None:
    clean = ack(1, 1) * 20
    others = [
        b'MSG _INBOX.abc.000000000002 1 40\r\n{"error":{"code":503,"err_code":10077}}xxxx\r\n',
        b'MSG _INBOX.other.000000000002 1 22\r\n{"stream":"S","seq":1}\r\n',
        b'MSG _INBOX.abc.000000000002 1 23\r\n{"stream":"S","seq":1}\r\n',  # the size is wrong
        b'MSG _INBOX.abc.00000000000x 1 22\r\n{"stream":"S","seq":1}\r\n',
        b"HMSG _INBOX.abc.000000000002 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    ]
    for other in others:
        at, told = read(clean + other)
        assert at == len(clean)
        assert len(told["S"]) == 20


def test_duplicates_are_told_however_many_layouts_alternate() -> None:
    """More streams than are read as columns."""
    sent = [(i, 10 ** (i % 17), "S" * (1 + i % 40), i % 3 == 0) for i in range(400)]
    data = b"".join(ack(token, sequence, stream, duplicate=known) for token, sequence, stream, known in sent)
    at, told = read(data)
    assert at == len(data)
    assert sorted(row for rows in told.values() for row in rows) == [(t, q, d) for t, q, _, d in sent]

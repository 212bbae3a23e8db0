"""Acknowledgements of more streams than are read as columns."""

from __future__ import annotations

import numpy as np
from mama_spark.nats.protocol.acks import AckColumns, BulkReader

INBOX = b"_INBOX.abc."


def test_duplicates_are_told_however_many_layouts_alternate() -> None:
    sent = [(i, 10 ** (i % 17), "S" * (1 + i % 40), i % 3 == 0) for i in range(400)]
    data = b""
    for token, sequence, stream, duplicate in sent:
        more = b',"duplicate": true' if duplicate else b""
        body = b'{"stream":"%b","seq":%d%b}' % (stream.encode(), sequence, more)
        data += b"MSG %b%012d 1 %d\r\n%b\r\n" % (INBOX, token, len(body), body)
    out: list[AckColumns] = []
    assert BulkReader(INBOX).read(data, 0, out) == len(data)
    columns = [np.concatenate([part for c in out for part in getattr(c, name)]).tolist()
               for name in ("tokens", "sequences", "duplicates")]  # fmt: skip
    assert sorted(zip(*columns, strict=True)) == [(t, q, d) for t, q, _, d in sent]

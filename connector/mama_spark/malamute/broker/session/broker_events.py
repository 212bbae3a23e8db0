"""Encodes events of the broker's clients and streams as messages of the broker's own stream. Pure.

The broker publishes them on a reserved stream (``_MAMA_EVENTS``), which clients can read but not write. Only clients
with :attr:`~mama_spark.malamute.protocol.extensions.Feature.DISCOVERY` may write discovery records to it if it is
stored, on subjects that begin with ``_``. Such clients cause no events, nor do clients that connect only to query
stored streams (:attr:`~mama_spark.malamute.protocol.extensions.Feature.LOG`).

The subject is ``<kind>.<stream>``, or ``<kind>.<client>`` for events without a stream; the content is one frame, a JSON
object with the names of :class:`BrokerEvent`. Bytes that are no UTF-8 are shown as ``\\xHH``.

| kind | meaning | detail |
|---|---|---|
| CONNECTED | a client opened | |
| WRITING | a client writes to a stream for the first time | |
| STOPPED | a client that wrote to a stream ended: CLOSE, expiry | |
| SUBSCRIBED | a pattern of a client took effect | the pattern |
| UNSUBSCRIBED | all patterns of a client on the stream ended: CANCEL, CLOSE, expiry | |
| REFUSED | a READ was refused | why |
| GONE | a client closed or was dropped | why |
| STREAM_LOST | the engine of a stream failed | why |
| EVENTS_LOST | the stream of events did not keep up | how many are missing |

A broker may use another ``encode`` for the content. The headers ``Mama-Event``, ``Mama-Client``, ``Mama-Stream`` and
``Mama-Detail`` are always set.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mama_spark.malamute.protocol.commands import shortened

#: Prefix of the subjects of discovery records, the only subjects of the broker's own stream that clients may write.
RECORD_PREFIX = b"_"


class BrokerEvent(NamedTuple):
    """:ivar client: address of the client
    :ivar time: microseconds since 1970 UTC
    """

    kind: str
    client: bytes
    stream: bytes
    detail: bytes
    time: int

    @property
    def subject(self) -> bytes:
        return shortened(self.kind.encode() + b"." + (self.stream or self.client))

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        values = (self.kind.encode(), self.client, self.stream, self.detail)
        return tuple((b"Mama-" + name, value) for name, value in zip(_HEADERS, values, strict=True) if value)


_HEADERS = (b"Event", b"Client", b"Stream", b"Detail")


def encode(event: BrokerEvent) -> bytes:
    texts = {name: getattr(event, name).decode("utf-8", "backslashreplace") for name in ("client", "stream", "detail")}
    return json.dumps({"kind": event.kind, **texts, "time": event.time}, ensure_ascii=False).encode()

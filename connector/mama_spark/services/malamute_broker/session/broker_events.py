"""Encodes events of the broker's clients and streams as messages of the broker's own stream. Pure.

The broker publishes them on a reserved stream (``_MAMA_EVENTS``) that clients read like any other and cannot write to,
but for those that announced :attr:`~mama_spark.malamute.protocol.extensions.Feature.DISCOVERY`: where the stream is
stored they may add records of discovery, on subjects that begin with ``_``. What such a client does is not told here,
nor that somebody came only to ask about stored streams (:attr:`~mama_spark.malamute.protocol.extensions.Feature.LOG`).

The subject is the kind, a point and the stream, or the client where no stream is concerned; the content is one frame,
a JSON object with the names of :class:`BrokerEvent`. Octets that are no UTF-8 are shown as ``\\xHH``.

| kind | meaning | detail |
|---|---|---|
| CONNECTED | a client opened | |
| WRITING | a client writes to a stream for the first time | |
| STOPPED | and will not any more: CLOSE, expiry | |
| SUBSCRIBED | a pattern of a client took effect | the pattern |
| UNSUBSCRIBED | all patterns of a client on the stream ended: CANCEL, CLOSE, expiry | |
| REFUSED | a READ was refused | why |
| GONE | a client closed or was dropped | why |
| STREAM_LOST | the engine of a stream failed | why |
| EVENTS_LOST | the stream of events did not keep up | how many are missing |

A broker whose readers expect other messages is given another ``encode``; readers of our own find the same in headers
(``Mama-Event``, ``Mama-Client``, ``Mama-Stream``, ``Mama-Detail``), whatever the content is.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mama_spark.malamute.protocol.extensions import Feature

from .client_session import ClientSession

#: Subjects of records of discovery begin with this; only on these may clients write to the broker's own stream.
RECORD_PREFIX = b"_"


#: Kind, address of the client, stream, detail.
EventFields = tuple[str, bytes, bytes, bytes]


class EventRecorder:
    """Collects what happens to clients and streams until the shell takes it."""

    def __init__(self) -> None:
        self._events: list[EventFields] = []

    def __len__(self) -> int:
        return len(self._events)

    def record(self, kind: str, client: ClientSession, stream: bytes = b"", detail: bytes = b"") -> None:
        """Clients that only read events are left out, or reading what happened would make something happen."""
        unreported = Feature.DISCOVERY | (Feature.LOG if kind in ("CONNECTED", "GONE") else Feature(0))
        if not client.features & unreported:
            self._events.append((kind, client.address, stream, detail))

    def record_lost_stream(self, stream: bytes, reason: bytes) -> None:
        self._events.append(("STREAM_LOST", b"", stream, reason))

    def take(self) -> list[EventFields]:
        taken, self._events = self._events, []
        return taken


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
        return (self.kind.encode() + b"." + (self.stream or self.client))[:255]

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        values = (self.kind.encode(), self.client, self.stream, self.detail)
        return tuple((b"Mama-" + name, value) for name, value in zip(_HEADERS, values, strict=True) if value)


_HEADERS = (b"Event", b"Client", b"Stream", b"Detail")


def encode(event: BrokerEvent) -> bytes:
    texts = {name: getattr(event, name).decode("utf-8", "backslashreplace") for name in ("client", "stream", "detail")}
    return json.dumps({"kind": event.kind, **texts, "time": event.time}, ensure_ascii=False).encode()

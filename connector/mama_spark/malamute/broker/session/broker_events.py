"""Events of the broker's clients and streams: which there are, and as messages of the broker's own stream. Pure.

The broker publishes them on a reserved stream (``_MAMA_EVENTS``), which clients can read but not write. Only clients
with :attr:`~mama_spark.malamute.protocol.extensions.Feature.DISCOVERY` may write discovery records to it if it is
stored, on subjects that begin with ``_``. Such clients cause no events; clients that query stored streams
(:attr:`~mama_spark.malamute.protocol.extensions.Feature.LOG`) cause no CONNECTED and GONE.

The subject is ``<kind>.<stream>``, or ``<kind>.<client>`` for events without a stream; the content is one frame, a JSON
object with the names of :class:`BrokerEvent`, unless the broker has another ``encode``. Bytes that are no UTF-8 are
shown as ``\\xHH``.

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

The headers ``Mama-Event``, ``Mama-Client``, ``Mama-Stream`` and ``Mama-Detail`` are always set.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Protocol

from mama_spark.malamute.protocol.commands import shortened
from mama_spark.malamute.protocol.extensions import Feature

#: Of discovery records, the only subjects of the broker's own stream that clients may write.
RECORD_PREFIX = b"_"
#: Kind, address of the client, stream, detail.
EventFields = tuple[str, bytes, bytes, bytes]


class BrokerEvent(NamedTuple):
    """An event of a client (by its address) or stream of the broker; ``time`` in microseconds since 1970 UTC."""

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


class Reported(Protocol):
    address: bytes
    features: Feature


class EventRecorder:
    def __init__(self) -> None:
        self._events: list[EventFields] = []

    def record(self, kind: str, client: Reported, stream: bytes = b"", detail: bytes = b"") -> None:
        """Record an event, except of clients that only read events: reading events must not cause events."""
        unreported = Feature.DISCOVERY | (Feature.LOG if kind in ("CONNECTED", "GONE") else Feature(0))
        if not client.features & unreported:
            self._events.append((kind, client.address, stream, detail))

    def record_lost_stream(self, stream: bytes, reason: bytes) -> None:
        self._events.append(("STREAM_LOST", b"", stream, reason))

    def take(self) -> list[EventFields]:
        taken, self._events = self._events, []
        return taken

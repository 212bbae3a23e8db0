"""What happens to the broker's clients and streams, as messages of a stream of its own. Pure.

The broker publishes them on a reserved stream (``_MAMA_EVENTS``) that clients read like any other and cannot write to.
The subject is the kind, a point and the stream, or the client where no stream is concerned; the content is one frame,
a JSON object with the names of :class:`BrokerEvent`. Octets that are no UTF-8 are shown as ``\\xHH``.

| kind | meaning | detail |
|---|---|---|
| CONNECTED | a client opened | |
| WRITING | a client writes to another stream from now on | |
| SUBSCRIBED | a pattern of a client took effect | the pattern |
| UNSUBSCRIBED | all patterns of a client on the stream ended: CANCEL, CLOSE, expiry | |
| REFUSED | a READ was refused | why |
| GONE | a client closed or was dropped | why |
| STREAM_LOST | the engine of a stream failed | why |
| EVENTS_LOST | the stream of events did not keep up | how many are missing |

A broker whose readers expect other messages is given another ``encode``.
"""

from __future__ import annotations

import json
from typing import NamedTuple


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


def encode(event: BrokerEvent) -> bytes:
    texts = {name: getattr(event, name).decode("utf-8", "backslashreplace") for name in ("client", "stream", "detail")}
    return json.dumps({"kind": event.kind, **texts, "time": event.time}, ensure_ascii=False).encode()

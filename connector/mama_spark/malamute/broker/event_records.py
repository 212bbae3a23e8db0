"""Events of a Malamute broker's clients as event records. Pure.

Events for which OpenMAMA has a name (PE-17) get that name; the others keep the broker's.

| event of the broker | event | topic, info |
|---|---|---|
| SUBSCRIBED, UNSUBSCRIBED | the same | the stream; the client, and its pattern |
| WRITING, STOPPED | PUBLISH_CREATE, PUBLISH_DESTROY | the stream; the client |
| STREAM_LOST | PUBLISH_ERROR, status PLATFORM | the stream; why |
| REFUSED | the same, status INVALID_ARG | the stream; the client, and why |
| CONNECTED, GONE | the same | no topic; the client, and why it went |
| EVENTS_LOST | the same, code = how many | no topic |
"""

from __future__ import annotations

from ...mama.messages.event_records import TOPIC, EventRecord, encode_event
from ...mama.messages.omnm import encode
from ...mama.messages.status import Status
from ...mama.states import TransportTopicEvent

_NAMES = {
    "SUBSCRIBED": TransportTopicEvent.SUBSCRIBED.value,
    "UNSUBSCRIBED": TransportTopicEvent.UNSUBSCRIBED.value,
    "WRITING": TransportTopicEvent.PUBLISH_CREATE.value,
    "STOPPED": TransportTopicEvent.PUBLISH_DESTROY.value,
    "STREAM_LOST": TransportTopicEvent.PUBLISH_ERROR.value,
}
_STATUSES = {"STREAM_LOST": Status.PLATFORM, "REFUSED": Status.INVALID_ARG}
_JOINED = {"SUBSCRIBED": "reads", "REFUSED": "was refused:", "GONE": "went:"}


def broker_event(kind: str, client: bytes, stream: bytes, detail: bytes, time: int) -> bytes:
    """One event as an encoded message; ``time`` in microseconds since the epoch. Bytes that are no UTF-8: ``\\xHH``."""
    who, topic, why = (_text(raw_bytes) for raw_bytes in (client, stream, detail))
    status = _STATUSES.get(kind)
    lost = int(why) if kind == "EVENTS_LOST" and why.isascii() and why.isdigit() else None
    record = EventRecord(
        TOPIC,
        _NAMES.get(kind, kind),
        time,
        topic=topic or None,
        status=None if status is None else status.name,
        code=min(lost, 2**31 - 1) if lost is not None else None if status is None else int(status),
        info=_info(kind, who, why) or None,
    )
    return encode(encode_event(record))


def _info(kind: str, client: str, detail: str) -> str:
    if not client and kind in ("STREAM_LOST", "EVENTS_LOST"):
        return detail
    who = f"client {client}" if client else "a client without address"
    return f"{who} {_JOINED.get(kind, '')} {detail}".rstrip() if detail else who


def _text(raw_bytes: bytes) -> str:
    return raw_bytes.decode("utf-8", "backslashreplace").replace("\0", "\\x00")

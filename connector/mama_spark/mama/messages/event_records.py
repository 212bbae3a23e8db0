"""Publisher and topic events as messages of the discovery log. The format is our own, not OpenMAMA's. Pure.

========================  =====  ======  ==============================================================================
name                      fid    type    value
========================  =====  ======  ==============================================================================
``EventKind``             10101  STRING  ``publisher`` or ``topic``
``EventName``             10102  STRING  of a publisher: ``create``, ``live``, ``error``, ``destroy``, ``counts``; of a
                                         topic: name of a :class:`~mama_spark.mama.states.TransportTopicEvent`
``EventTime``             10103  TIME    when it happened, microseconds
``EventSourceName``       10104  STRING  the source whose publisher it is
``EventSourceID``         10105  U64
``EventTopic``            10106  STRING
``EventRoot``             10107  STRING
``EventSource``           10108  STRING  second part of the topic
``EventSymbol``           10109  STRING
``EventStatus``           10110  STRING  name of a status
``EventCode``             10111  I32     the middleware's own number
``EventInfo``             10112  STRING  the middleware's text
``EventPublisher``        10113  STRING  which publisher, a text
``EventPublisherState``   10114  STRING  name of a :class:`~mama_spark.mama.states.PublisherState`
``EventTaken``            10115  U64     with ``counts``: messages so far
``EventAcknowledged``     10116  U64     of them, those that are acknowledged
``EventFailed``           10117  U64     of them, those that failed
``EventInFlight``         10118  U64     of them, those without their outcome
========================  =====  ======  ==============================================================================

Kind, name and time are required, the others optional. Events, statuses and states are names and never numbers. A reader
finds a field by fid and name and ignores fields that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .msg import FieldType, MamaMsg, MamaTime
from .source_records import BadSourceRecord

PUBLISHER, TOPIC = "publisher", "topic"
CREATE, LIVE, ERROR, DESTROY = "create", "live", "error", "destroy"  #: events of a publisher
COUNTS = "counts"  #: how it is, now and then


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event.

    :ivar at_us: microseconds since 1970 UTC
    :ivar publisher: name of the publisher, e.g. source and partition
    """

    kind: str
    event: str
    at_us: int
    source_name: str | None = None
    source_id: int | None = None
    topic: str | None = None
    root: str | None = None
    source: str | None = None
    symbol: str | None = None
    status: str | None = None
    code: int | None = None
    info: str | None = None
    publisher: str | None = None
    state: str | None = None
    taken: int | None = None
    acked: int | None = None
    failed: int | None = None
    in_flight: int | None = None


#: attribute -> (name, fid, type); the time is encoded separately
FIELDS: dict[str, tuple[str, int, FieldType]] = {
    "kind": ("EventKind", 10101, FieldType.STRING),
    "event": ("EventName", 10102, FieldType.STRING),
    "at_us": ("EventTime", 10103, FieldType.TIME),
    "source_name": ("EventSourceName", 10104, FieldType.STRING),
    "source_id": ("EventSourceID", 10105, FieldType.U64),
    "topic": ("EventTopic", 10106, FieldType.STRING),
    "root": ("EventRoot", 10107, FieldType.STRING),
    "source": ("EventSource", 10108, FieldType.STRING),
    "symbol": ("EventSymbol", 10109, FieldType.STRING),
    "status": ("EventStatus", 10110, FieldType.STRING),
    "code": ("EventCode", 10111, FieldType.I32),
    "info": ("EventInfo", 10112, FieldType.STRING),
    "publisher": ("EventPublisher", 10113, FieldType.STRING),
    "state": ("EventPublisherState", 10114, FieldType.STRING),
    "taken": ("EventTaken", 10115, FieldType.U64),
    "acked": ("EventAcknowledged", 10116, FieldType.U64),
    "failed": ("EventFailed", 10117, FieldType.U64),
    "in_flight": ("EventInFlight", 10118, FieldType.U64),
}
_ATTRIBUTES = {(name, fid): (attribute, kind) for attribute, (name, fid, kind) in FIELDS.items()}


def encode_event(record: EventRecord) -> MamaMsg:
    """The message that stores an event.

    :raises BadSourceRecord: for an unknown kind, or an event without a name
    :raises StatusError: for a value that no message can hold
    """
    _check(record.kind, record.event)
    msg = MamaMsg()
    for attribute, (name, fid, kind) in FIELDS.items():
        value = getattr(record, attribute)
        if value is None:
            continue
        if attribute == "at_us":
            value = MamaTime.from_us(value)
        elif attribute == "info":  # text of a middleware: the event must be stored whatever it contains
            value = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        msg.add(kind, name, fid, value)
    return msg


def decode_event(msg: MamaMsg) -> EventRecord:
    """The event that a message stores.

    :raises BadSourceRecord: for a message that is no event, or a field of another type
    """
    found: dict[str, Any] = {}
    for name, fid, kind, value in msg.fields:
        ours = _ATTRIBUTES.get((name, fid))
        if ours is None:
            continue
        attribute, wanted = ours
        if kind is not wanted:
            raise BadSourceRecord(f"{name}[{fid}] must be {wanted.name}, got {kind.name}")
        found.setdefault(attribute, value.us if kind is FieldType.TIME else value)
    missing = [FIELDS[attribute][0] for attribute in ("kind", "event", "at_us") if attribute not in found]
    if missing:
        raise BadSourceRecord(f"no event: {', '.join(missing)} missing")
    _check(found["kind"], found["event"])
    return EventRecord(**found)


def _check(kind: str, event: str) -> None:
    if kind not in (PUBLISHER, TOPIC):
        raise BadSourceRecord(f"an event is of kind {PUBLISHER} or {TOPIC}, got {kind!r}")
    if not event or event.isdigit():
        raise BadSourceRecord(f"events have names, got {event!r}")

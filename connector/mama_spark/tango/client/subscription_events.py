"""Subscription events, which a subscriber delivers: events, values that were read, errors, gaps, availability. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..events.batch_decoder import BatchDecoder, EventColumns
from ..events.event_codec import Data, Event, decode
from ..events.sequence_tracker import SequenceGap, SequenceRestart
from ..types import AttributeValue, DevError, Severity

Frames = Sequence[bytes]


class SubscriptionEventKind(Enum):
    EVENT = "event"  #: an event as the server sent it; it may carry errors
    INITIAL = "initial"  #: the value that was read after the first negotiation
    RESUBSCRIPTION = "resubscription"  #: the value that was read after a reconnection
    CHECK = "check"  #: a check of losses: the value, or without frames the counter, that was asked for
    ERROR = "error"  #: the server cannot be reached (API_EventTimeout), or refused the subscription
    GAP = "gap"  #: events were lost; delivered before the next event, or by a check of losses (TG-46)
    RESTART = "restart"  #: the counter started again; delivered before the next event
    OVERFLOW = "overflow"  #: the full queue dropped its oldest events (TG-44)
    ONLINE = "online"  #: heartbeats of the server arrive
    OFFLINE = "offline"  #: heartbeats of the server are missing


class QueueOverflow(NamedTuple):
    """The subscription events that a full queue dropped.

    :ivar size: number of subscription events; a GAP counts as the events that it told of
    :ivar first: counter of the first EVENT among them, or of a GAP; -1: there is none
    :ivar last: counter of the last EVENT among them, or of a GAP; -1: there is none
    """

    size: int
    first: int
    last: int


class SubscriptionEvent(NamedTuple):
    """One event that a subscriber delivers for a subscription.

    :ivar received: time of arrival, nanoseconds since the epoch
    :ivar frames: topic, byte order, call info and data. Of an EVENT as received; of INITIAL, RESUBSCRIPTION and CHECK
        as the server would send the value, with the counter 0; of other kinds None
    :ivar ctr: counter of an EVENT; of a CHECK without frames, that of the last event that the server has sent when
        nothing was received yet; 0 for other kinds
    :ivar detail: error stack of an ERROR, and of an OFFLINE its cause; SequenceGap of a GAP, SequenceRestart of a
        RESTART, :class:`QueueOverflow` of an OVERFLOW; else None
    """

    subscription: Any
    kind: SubscriptionEventKind
    received: int
    frames: Frames | None = None
    ctr: int = 0
    detail: tuple[DevError, ...] | SequenceGap | SequenceRestart | QueueOverflow | None = None

    @property
    def event(self) -> Event | None:
        """The decoded frames (EVENT_INFO, TG-11); None without frames.

        :raises BadEvent: the frames are no valid event
        """
        if self.frames is None:
            return None
        found = decode(self.frames)
        assert isinstance(found, Event)
        return found

    @property
    def data(self) -> Data | None:
        """Data of the event (TG-12); None for errors, and without frames."""
        event = self.event
        return None if event is None else event.data

    @property
    def value(self) -> AttributeValue:
        """The attribute value of the event (TG-17).

        :raises TypeError: the event carries no value of an attribute
        """
        data = self.data
        if not isinstance(data, AttributeValue):
            raise TypeError(f"this event carries no value: {self!r}")
        return data

    @property
    def errors(self) -> tuple[DevError, ...]:
        """Error stack (TG-18) of an EVENT or ERROR; API_MissedEvents of a GAP, as in cppTango; empty for other
        kinds."""
        event, detail = self.event, self.detail
        if event is not None:
            return event.errors
        if isinstance(detail, SequenceGap):
            desc = f"{detail.size} events are missing, with the counters {detail.first} to {detail.last}"
            return (DevError("API_MissedEvents", Severity.ERR, desc, str(self.subscription)),)
        return () if detail is None or isinstance(detail, (SequenceRestart, QueueOverflow)) else detail


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Subscription events in order, and their n decoded frames as ``columns``: row ``i`` is of ``events[rows[i]]``;
    ``rows`` are ascending."""

    events: list[SubscriptionEvent]
    rows: npt.NDArray[np.int64]
    columns: EventColumns

    def __len__(self) -> int:
        return len(self.events)


def decode_events(events: list[SubscriptionEvent], decoder: BatchDecoder) -> EventBatch:
    """Decode the frames of subscription events; reuse ``decoder``, since it caches the layouts of frames."""
    framed = [event[3] for event in events]
    if None in framed:
        rows = np.array([row for row, frames in enumerate(framed) if frames is not None], np.int64)
        framed = [frames for frames in framed if frames is not None]
    else:
        rows = np.arange(len(framed))
    topics, orders, calls, datas = zip(*framed, strict=True) if framed else ((), (), (), ())
    return EventBatch(events, rows, decoder.decode(topics, orders, calls, datas))

"""What a subscriber delivers: events, values that were asked for, errors, and what became of the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..events.batch_decoder import BatchDecoder, EventColumns
from ..events.counters import SequenceGap, SequenceRestart
from ..events.events import Data, Event, decode
from ..types import AttributeValue, DevError, Severity

Frames = Sequence[bytes]


class SubscriptionEventKind(Enum):
    EVENT = "event"  #: as the server sent it, errors that it sent included
    INITIAL = "initial"  #: a value that was read at the beginning: not an event
    RESUBSCRIPTION = "resubscription"  #: a value that was read after a reconnection: not an event
    ERROR = "error"  #: of the subscription: the server is away (API_EventTimeout), or refuses
    GAP = "gap"  #: events did not come; told before the next one (TG-46)
    RESTART = "restart"  #: the counter began anew; told before the next event
    OVERFLOW = "overflow"  #: notices were dropped here, the oldest first, since nobody took them (TG-44)
    ONLINE = "online"  #: the server can be heard
    OFFLINE = "offline"  #: its heartbeats are missing


class QueueOverflow(NamedTuple):
    """What an overflow dropped.

    :ivar size: notices
    :ivar first: counter of the first event among them, -1: there was none; ``last`` likewise
    """

    size: int
    first: int
    last: int


class SubscriptionEvent(NamedTuple):
    """One thing that happened to one subscription.

    :ivar subscription: that it is for
    :ivar kind: see there
    :ivar received: when it came here, in nanoseconds since the epoch
    :ivar frames: topic, byte order, call info, data: of events as they came, of values that were read as the server
        would have sent them, with the counter 0; None of everything else
    :ivar ctr: counter of an event; else 0
    :ivar detail: errors of ERROR; :class:`~mama_spark.tango.events.counters.SequenceGap`,
        :class:`~mama_spark.tango.events.counters.SequenceRestart` and :class:`QueueOverflow` of GAP, RESTART and
            OVERFLOW
    """

    subscription: Any
    kind: SubscriptionEventKind
    received: int
    frames: Frames | None = None
    ctr: int = 0
    detail: tuple[DevError, ...] | SequenceGap | SequenceRestart | QueueOverflow | None = None

    @property
    def event(self) -> Event | None:
        """The frames, decoded now (EVENT_INFO, TG-11); None without frames.

        :raises BadEvent: the server sent something else
        """
        if self.frames is None:
            return None
        found = decode(self.frames)
        assert isinstance(found, Event)
        return found

    @property
    def data(self) -> Data | None:
        """What the event carries (TG-12); None of errors and of everything without frames."""
        event = self.event
        return None if event is None else event.data

    @property
    def value(self) -> AttributeValue:
        """The value of an attribute.

        :raises TypeError: this is something else
        """
        data = self.data
        if not isinstance(data, AttributeValue):
            raise TypeError(f"no value in {self!r}")
        return data

    @property
    def errors(self) -> tuple[DevError, ...]:
        """EVENT_ERROR (TG-18) of events and errors; of a gap API_MissedEvents, as Tango's own clients say it."""
        event, detail = self.event, self.detail
        if event is not None:
            return event.errors
        if isinstance(detail, SequenceGap):
            desc = f"missed {detail.size} events, {detail.first} to {detail.last}"
            return (DevError("API_MissedEvents", Severity.ERR, desc, str(self.subscription)),)
        return () if detail is None or isinstance(detail, (SequenceRestart, QueueOverflow)) else detail


@dataclass(frozen=True, slots=True)
class Batch:
    """Notices in the order in which they came, and what their frames hold as columns.

    :ivar notices: all
    :ivar rows: which of them have frames, ascending; row ``i`` of ``columns`` is notice ``rows[i]``
    """

    notices: list[SubscriptionEvent]
    rows: npt.NDArray[np.int64]
    columns: EventColumns
    decoder: BatchDecoder = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.notices)


def decode_notices(notices: list[SubscriptionEvent], decoder: BatchDecoder) -> Batch:
    """Decode all at once.

    :param decoder: kept between calls, since it remembers the layouts that it saw
    """
    framed = [notice[3] for notice in notices]
    if None in framed:
        rows = np.array([row for row, frames in enumerate(framed) if frames is not None], np.int64)
        framed = [frames for frames in framed if frames is not None]
    else:
        rows = np.arange(len(framed))
    topics, orders, calls, datas = zip(*framed, strict=True) if framed else ((), (), (), ())
    return Batch(notices, rows, decoder.decode(topics, orders, calls, datas), decoder)

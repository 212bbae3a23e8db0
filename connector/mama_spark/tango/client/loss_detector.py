"""Finds events that were lost after the newest one of their topic, since a server was asked about it twice. Pure.

A counter shows a loss when the next event comes; of the end of a series nothing comes. What servers can be asked
decides what is found:

- Servers of Tango 10 tell the counter of the newest event that they have sent (``QueryEventSystem``). An event that one
  check heard of, and that has not been received by the next check, is lost, if nothing of its topic was received
  between them: exact, with counters.
- Older servers can only be asked for the value. If twice it differs from the newest one that was received, and nothing
  was received in between, it is delivered. That is no proof of a loss: a device may change a value by less than its
  criteria, or without an event. A value that went and came back is not found.

The time between two checks must be longer than an event may be on its way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..events.event_codec import BIG, LITTLE, BadEvent, Event, decode
from ..events.sequence_tracker import SequenceGap, SequenceTracker, is_kept
from ..types import AttributeValue

_Value = tuple[object, ...]


class LossDetector:
    """Compares two checks; ``sequences`` has the counters of received events, and is told which losses are known."""

    def __init__(self, sequences: SequenceTracker) -> None:
        self._sequences = sequences
        #: topic -> counter that the server told at the last check, and what had been received by then
        self._sent: dict[bytes, tuple[int, object]] = {}
        #: topic -> newest event by the last check, when the value that was read differed
        self._different: dict[bytes, object] = {}
        #: topic -> newest event when a value was read and delivered, and the frames of this value
        self._delivered: dict[bytes, tuple[object, Sequence[bytes]]] = {}

    def forget(self, topic: bytes) -> None:
        """Forget a topic without subscriptions."""
        for known in (self._sent, self._different, self._delivered):
            known.pop(topic, None)

    def check_counter(self, topic: bytes, counter: int) -> SequenceGap | int | None:
        """Compare the counter of the newest event that a server has sent with what was received. Returns the events
        that are certain to be lost now; where nothing was received yet, the counter that was sent before the first
        check."""
        newest = self._sequences.newest(topic)
        before, self._sent[topic] = self._sent.get(topic), (counter, newest)
        if before is None or before[1] is not newest:
            return None
        if newest is None:
            self._sequences.begin(topic, before[0])
            self._sent[topic] = (counter, self._sequences.newest(topic))
            return before[0]
        return self._sequences.lose(topic, before[0])

    def value_was_read(self, frames: Sequence[bytes]) -> None:
        """Note that a value was read and delivered, outside checks."""
        if is_kept(frames[3]):
            self._delivered[frames[0]] = (self._sequences.newest(frames[0]), frames)

    def check_value(self, frames: Sequence[bytes]) -> bool:
        """Whether to deliver a value that was read now; its ``frames`` are as in an event."""
        topic = frames[0]
        value, newest = _value(frames), self._sequences.newest(topic)
        known = self._known(topic, newest)
        different = value is not None and known is not None and value != known
        again = different and topic in self._different and self._different[topic] is newest
        if different:
            self._different[topic] = newest
        else:
            self._different.pop(topic, None)
        if again or (known is None and newest is None):
            self._different.pop(topic, None)
            self.value_was_read(frames)
        return again

    def _known(self, topic: bytes, newest: object) -> _Value | None:
        """The newest event, or a value that was delivered after it. None: neither, or it is too large to be kept."""
        delivered = self._delivered.get(topic)
        if delivered is not None and delivered[0] is newest:
            return _value(delivered[1])
        kept = self._sequences.newest_frames(topic)
        if kept is None:
            return None
        call, data = kept
        order = LITTLE if call[:2] != b"\0\0" else BIG  # it begins with a small number
        return _value([topic, order, call, data])


def _value(frames: Sequence[bytes]) -> _Value | None:
    """The compared part of an event: the read value and its quality, or that it is an error; None: nothing."""
    try:
        event = decode(frames)
    except BadEvent:
        return None
    if not isinstance(event, Event):
        return None
    if event.errors:
        return ("error",)
    value = event.data
    if not isinstance(value, AttributeValue):
        return None
    read = value.read
    content = read.tobytes() if isinstance(read, np.ndarray) else repr(read)
    return value.kind, value.quality, value.r_dim, content

"""The streams of a broker, as far as the sessions of clients need to know them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..counters import SessionClock

#: Seconds from which the start of an engine counts as slow: clients ping once a second, and give up after four.
SLOW_START = 1.0


class StreamTable:
    """:param most: streams that may be made
    :param has_flow_control: does the engine of this stream deliver only what it has credit for?
    :ivar opening: streams whose engine has not started, and since when
    :ivar with_flow_control: streams whose engine delivers only what it has credit for
    :ivar stored: streams whose engine stores messages
    :ivar full: streams whose backlog is full; the shell knows
    """

    def __init__(self, most: int, has_flow_control: Callable[[bytes], bool], clock: SessionClock) -> None:
        self.names: set[bytes] = set()
        self.opening: dict[bytes, float] = {}
        self.with_flow_control: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.full: set[bytes] = set()
        self._most = most
        self._has_flow_control = has_flow_control
        self._clock = clock
        self._early_octets: dict[bytes, int] = {}  # sent to streams that are opening

    def __repr__(self) -> str:
        return f"<StreamTable {len(self.names)} streams, {len(self.opening)} opening>"

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.names)

    def __contains__(self, stream: object) -> bool:
        return stream in self.names

    def may_add(self, stream: bytes) -> bool:
        """It is there already, or there is room for one more."""
        return stream in self.names or len(self.names) < self._most

    def add(self, stream: bytes) -> None:
        """Idempotent; the shell opens the stream when it finds the first command for it."""
        if stream not in self.names:
            self.names.add(stream)
            self.opening[stream] = self._clock.now
            self._early_octets[stream] = 0
            if self._has_flow_control(stream):
                self.with_flow_control.add(stream)

    def started(self, stream: bytes) -> None:
        """The engine has answered; only the first call changes something."""
        if self.opening and self.opening.pop(stream, None) is not None:
            del self._early_octets[stream]

    def remove(self, stream: bytes) -> None:
        """The engine has failed."""
        for names in (self.names, self.with_flow_control, self.stored, self.full):
            names.discard(stream)
        self.opening.pop(stream, None)
        self._early_octets.pop(stream, None)

    def count_early(self, stream: bytes, octets: int) -> int:
        """Count octets sent to a stream that is opening; all of them together."""
        self._early_octets[stream] += octets
        return self._early_octets[stream]

    def starts_slowly(self, now: float) -> bool:
        return any(now - since > SLOW_START for since in self.opening.values())

"""The streams of a broker, for the sessions of its clients, and which of them no client has used for a while. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..client_session import ClientSession
from ..counters import SessionClock
from ..settings import SessionSettings

#: Seconds after which the start of an engine counts as slow: clients ping every second and time out after four.
SLOW_START = 1.0
#: Fraction of the time-out of idle streams between looks at all streams.
LOOKS = 4


class StreamTable:
    """:param settings: with the limit of streams, the time-out of idle ones (0 = never), and the broker's own stream,
        which is never idle
    :param has_flow_control: whether the engine of a stream delivers only against credit
    :ivar opening: streams whose engine has not started -> time of the first command
    :ivar with_flow_control: streams whose engine delivers only against credit
    :ivar stored: streams whose engine stores messages
    :ivar full: streams whose backlog is full; set by the caller
    """

    def __init__(
        self, settings: SessionSettings, has_flow_control: Callable[[bytes], bool], clock: SessionClock
    ) -> None:
        self.names: set[bytes] = set()
        self.opening: dict[bytes, float] = {}
        self.with_flow_control: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.full: set[bytes] = set()
        self._settings = settings
        self._has_flow_control = has_flow_control
        self._clock = clock
        self._early_octets: dict[bytes, int] = {}  # octets sent to streams that are opening
        self._unused_since: dict[bytes, float] = {}  # streams without clients -> time when that was first seen
        self._next_look = 0.0

    def __repr__(self) -> str:
        return f"<StreamTable {len(self.names)} streams, {len(self.opening)} opening>"

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.names)

    def __contains__(self, stream: object) -> bool:
        return stream in self.names

    def may_add(self, stream: bytes) -> bool:
        """Whether the stream exists, or the limit allows one more."""
        return stream in self.names or len(self.names) < self._settings.streams

    def add(self, stream: bytes) -> None:
        """Add a stream; the caller opens its engine at the first command for it. Idempotent."""
        if stream not in self.names:
            self.names.add(stream)
            self.opening[stream] = self._clock.now
            self._early_octets[stream] = 0
            if self._has_flow_control(stream):
                self.with_flow_control.add(stream)

    def started(self, stream: bytes) -> None:
        """To be called when the engine has answered; later calls have no effect."""
        if self.opening and self.opening.pop(stream, None) is not None:
            del self._early_octets[stream]

    def remove(self, stream: bytes) -> None:
        """Remove a stream whose engine has failed or ended."""
        for names in (self.names, self.with_flow_control, self.stored, self.full):
            names.discard(stream)
        for times in (self.opening, self._unused_since, self._early_octets):
            times.pop(stream, None)

    def count_early(self, stream: bytes, octets: int) -> int:
        """Count octets sent to a stream that is opening; returns their sum."""
        self._early_octets[stream] += octets
        return self._early_octets[stream]

    def starts_slowly(self, now: float) -> bool:
        return any(now - since > SLOW_START for since in self.opening.values())

    def idle(self, clients: Iterable[ClientSession], now: float) -> list[bytes]:
        """Names of the streams that were without clients for the time-out; looks only now and then."""
        timeout, own = self._settings.stream_idle, self._settings.events
        if not timeout or now < self._next_look or not self.names:
            return []
        self._next_look = now + timeout / LOOKS
        used: set[bytes | None] = set()
        for client in clients:
            used.add(client.write_stream)
            used.update(client.subscriptions, client.unsynced_sends)
        since = self._unused_since
        self._unused_since = {
            name: since.get(name, now)
            for name in self.names
            if name not in used and name != own and name not in self.opening
        }
        return [name for name, first in self._unused_since.items() if now - first >= timeout]

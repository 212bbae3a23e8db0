"""Finds streams that no client has used for a while, so that their engines can end. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..client_session import ClientSession
from ..settings import SessionSettings
from .stream_table import StreamTable

#: Fraction of the time-out between looks at all streams.
LOOKS = 4


class IdleStreams:
    """:param settings: with the time-out (0 = never), and the broker's own stream, which is never idle"""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._next_look = 0.0

    def find(self, streams: StreamTable, clients: Iterable[ClientSession], now: float) -> list[bytes]:
        """Names of the streams that were without clients for the time-out; looks only now and then."""
        timeout, own = self._settings.stream_idle, self._settings.events
        if not timeout or now < self._next_look or not len(streams):
            return []
        self._next_look = now + timeout / LOOKS
        used: set[bytes | None] = set()
        for client in clients:
            used.add(client.write_stream)
            used.update(client.subscriptions, client.unsynced_sends)
        since = streams.unused_since
        streams.unused_since = {
            name: since.get(name, now)
            for name in streams
            if name not in used and name != own and name not in streams.opening
        }
        return [name for name, first in streams.unused_since.items() if now - first >= timeout]

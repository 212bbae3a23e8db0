"""Send windows of publishing clients: octets that each may send before engines have answered. Pure.

Uses :class:`~mama_spark.malamute.protocol.credit.SendWindow`; the windows of all clients share the limit of a stream's
backlog.
"""

from __future__ import annotations

from mama_spark.malamute.protocol.credit import SendWindow, window_for
from mama_spark.malamute.protocol.extensions import Feature

from ..client_session import ClientSession


class PublishWindows:
    """:param backlog: octets that may wait for the engine of one stream
    :ivar publishers: number of clients with a send window that have used it
    """

    def __init__(self, backlog: int) -> None:
        self.publishers = 0
        self._backlog = backlog

    def connected(self, client: ClientSession) -> int | None:
        """The first credit of a new client, for OK; None if it has no send window."""
        if Feature.SENDING | Feature.ACKS not in client.features:
            return None
        client.send_window = SendWindow()
        return self._grant(client.send_window)

    def gone(self, client: ClientSession) -> None:
        if client.send_window is not None:
            self.publishers -= client.send_window.in_use
            client.send_window = None

    def ping(self, client: ClientSession) -> int:
        """To be called at a PING; returns the octets that its answer covers."""
        window = client.send_window
        if window is None:
            return 0
        octets = window.ping()
        if octets and not window.in_use:
            window.in_use = True
            self.publishers += 1
        return octets

    def pong(self, client: ClientSession, octets: int) -> int | None:
        """To be called when engines have answered a PING; returns the credit for PONG, None if there is none."""
        window = client.send_window
        if window is None:
            return None
        window.answered(octets)
        return self._grant(window) or None

    @staticmethod
    def lost(client: ClientSession, octets: int) -> None:
        """To be called when an engine failed before it answered a PING that covers ``octets``."""
        if client.send_window is not None:
            client.send_window.answered(octets)

    def _grant(self, window: SendWindow) -> int:
        return window.grant(window_for(self.publishers, self._backlog))

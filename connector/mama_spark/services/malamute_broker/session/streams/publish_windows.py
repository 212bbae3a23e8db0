"""Send windows of clients that publish: what each may send before engines have answered. Pure.

The rule is :class:`~mama_spark.malamute.protocol.credit.SendWindow`; the windows of all clients share the limit of a
stream's backlog.
"""

from __future__ import annotations

from mama_spark.malamute.protocol.credit import SendWindow, window_for
from mama_spark.malamute.protocol.extensions import Feature

from ..client_session import ClientSession


class PublishWindows:
    """:param backlog: octets that may wait for the engine of one stream
    :ivar publishers: clients that keep to a send window and have used it
    """

    def __init__(self, backlog: int) -> None:
        self.publishers = 0
        self._backlog = backlog

    def connected(self, client: ClientSession) -> int | None:
        """The first credit of a new client, to be told in OK; None: it keeps to no window."""
        if Feature.SENDING | Feature.ACKS not in client.features:
            return None
        client.send_window = SendWindow()
        return self._grant(client.send_window)

    def gone(self, client: ClientSession) -> None:
        if client.send_window is not None:
            self.publishers -= client.send_window.in_use
            client.send_window = None

    def ping(self, client: ClientSession) -> int:
        """The client sent PING: octets that the answer covers."""
        window = client.send_window
        if window is None:
            return 0
        octets = window.ping()
        if octets and not window.in_use:
            window.in_use = True
            self.publishers += 1
        return octets

    def pong(self, client: ClientSession, octets: int) -> int | None:
        """Engines have taken what a PING covers: the credit to be told in PONG; None: none."""
        window = client.send_window
        if window is None:
            return None
        window.answered(octets)
        return self._grant(window) or None

    @staticmethod
    def lost(client: ClientSession, octets: int) -> None:
        """An engine has failed that would have taken what a PING covers."""
        if client.send_window is not None:
            client.send_window.answered(octets)

    def _grant(self, window: SendWindow) -> int:
        return window.grant(window_for(self.publishers, self._backlog))

"""The ZeroMQ connections of the channels: which heartbeats belong to which channel, and how large their queues are."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .subscription_states import Connect, Disconnect
from .zmq_event_receiver import ZmqEventReceiver

_HWM_VARIABLE, _DEFAULT_HWM = "TANGO_EVENT_BUFFER_HWM", 1000
#: Seconds until a subscription message has reached the publisher, on a new and on an existing ZeroMQ connection.
_SETTLE_NEW, _SETTLE = 0.02, 0.001


class ChannelConnections:
    """Not thread-safe.

    :param hwm: high-water mark; None: of the environment, or what the server sends
    :ivar hwm: of the newest connection
    :ivar reconnects: how often a channel was connected again
    """

    def __init__(self, hwm: int | None) -> None:
        self._configured_hwm, self.hwm = hwm, hwm or _DEFAULT_HWM
        self.reconnects = 0
        self._channels: dict[bytes, str] = {}  # heartbeat topic -> channel
        self._endpoints: dict[str, str] = {}  # channel -> endpoint of its heartbeats
        self._newest = 0.0

    def connect(self, receiver: ZmqEventReceiver, action: Connect, now: float) -> None:
        self.reconnects += action.again
        self._endpoints[action.channel] = action.pair.heartbeat
        for topic in action.heartbeats:
            self._channels[topic.encode("latin-1")] = action.channel
        variable = os.environ.get(_HWM_VARIABLE, "")
        self.hwm = self._configured_hwm or int(variable if variable.isdecimal() else 0) or max(action.hwm, 1)
        self._newest = now
        receiver.connect(action.pair, action.heartbeats, self.hwm)

    def disconnect(self, receiver: ZmqEventReceiver, action: Disconnect) -> None:
        for topic in action.heartbeats:
            self._channels.pop(topic.encode("latin-1"), None)
        self._endpoints.pop(action.channel, None)
        receiver.disconnect(action.pair, action.heartbeats)

    def settled_at(self, now: float) -> float:
        """Time at which the publishers know what was subscribed until ``now``."""
        return max(self._newest + _SETTLE_NEW, now + _SETTLE)

    def with_heartbeats(self, topics: Iterable[bytes]) -> set[str]:
        """Channels to which heartbeats of these topics belong."""
        return {self._channels[topic] for topic in topics if topic in self._channels}

    def at(self, heartbeat_endpoint: str) -> list[str]:
        """Channels whose heartbeats come from there."""
        return [channel for channel, endpoint in self._endpoints.items() if endpoint == heartbeat_endpoint]

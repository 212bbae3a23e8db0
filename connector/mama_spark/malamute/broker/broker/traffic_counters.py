"""Counters of the traffic on the broker's sockets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SocketCounters:
    """Counters since the start of the broker, explained in :mod:`.metrics`."""

    received_messages: int = 0
    received_octets: int = 0
    sent_messages: int = 0
    sent_octets: int = 0
    lost_events: int = 0
    refused_logins: int = 0

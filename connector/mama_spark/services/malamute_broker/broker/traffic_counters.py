"""Counts the traffic of the broker's sockets, beside the counters of the session machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TrafficCounters:
    """Since the start of the broker; :mod:`.metrics` explains each."""

    received_messages: int = 0
    received_octets: int = 0
    sent_messages: int = 0
    sent_octets: int = 0
    lost_events: int = 0
    refused_logins: int = 0

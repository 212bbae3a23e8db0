"""Decides when a source is SUSPECT and when OFFLINE: the one rule of all bridges and readers. Pure.

A process that announces a source renews it three times in its time to live (``ttl``, seconds). A source that nobody
renews is SUSPECT after half of that time and OFFLINE after all of it; one that is not in an image is OFFLINE, too. A
record that is written again makes the source ONLINE.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from ..contracts.errors import ConfigError


def check_ttl(ttl: float) -> None:
    """Check the time to live of a source, in seconds.

    :raises ConfigError: it is not positive
    """
    if not ttl > 0:
        raise ConfigError(f"the time to live of a source must be positive, got {ttl:g}")


def renew_every(ttl: float) -> float:
    """Seconds between two renewals."""
    return ttl / 3


def suspect_after(ttl: float) -> float:
    """Seconds after the last renewal."""
    return ttl / 2


def offline_after(ttl: float) -> float:
    """Seconds after the last renewal."""
    return ttl


def expires_after(ttl: float, state: DiscoveryEventKind) -> float:
    """Seconds after the last renewal until ``state``, which is SUSPECT or OFFLINE."""
    return offline_after(ttl) if state is DiscoveryEventKind.OFFLINE else suspect_after(ttl)


def expiries(renewed: float, ttl: float, state: DiscoveryEventKind | None) -> list[tuple[float, DiscoveryEventKind]]:
    """Expiries ahead of a source that is not renewed, with their times. ``renewed``: time of the last renewal, on any
    clock; ``state``: last reported: None, SUSPECT or OFFLINE."""
    if state is DiscoveryEventKind.OFFLINE:
        return []
    offline = (renewed + offline_after(ttl), DiscoveryEventKind.OFFLINE)
    if state is DiscoveryEventKind.SUSPECT:
        return [offline]
    return [(renewed + suspect_after(ttl), DiscoveryEventKind.SUSPECT), offline]


def state_by_marker(*, half: bool) -> DiscoveryEventKind:
    """SUSPECT or OFFLINE: what a marker means that a middleware leaves in its log when a renewal expires; ``half``: of
    the one that lives half of the time to live, not all of it."""
    return DiscoveryEventKind.SUSPECT if half else DiscoveryEventKind.OFFLINE


def state_by_markers(record: int, suspect: int | None, offline: int | None) -> DiscoveryEventKind | None:
    """State of a source whose middleware leaves a marker in its log when a renewal expires; None: it is ONLINE.
    Sequences: ``record`` of the source's own record, which answers all markers before it; ``suspect``, ``offline`` of
    the markers of the renewals that live half the time, and all of it, if any."""
    if offline is not None and offline > record:
        return state_by_marker(half=False)
    if suspect is not None and suspect > record:
        return state_by_marker(half=True)
    return None


def offline_by_absence(known: Iterable[SourceKey], image: Iterable[DiscoveryEvent]) -> set[SourceKey]:
    """Sources that are OFFLINE because they are known and not in a complete image: they ended while nobody read."""
    return set(known) - {event.source for event in image if event.source is not None}

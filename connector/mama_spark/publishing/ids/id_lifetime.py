"""How long a middleware surely knows the id of a message that was sent. Pure.

It knows an id for its duplicate window, from the moment when it stored the message. What is sent again arrives later
than it was sent, by nobody knows how much: half of the window is left for that.
"""

from __future__ import annotations

DEDUP_WINDOW_MARGIN = 0.5  #: the part of the window in which an id is trusted


def known_for(window: float) -> float:
    """Seconds after the first send in which a resend is stored once."""
    return DEDUP_WINDOW_MARGIN * window


def window_for(resends: float) -> float:
    """The shortest duplicate window with which resends are stored once for so many seconds."""
    return resends / DEDUP_WINDOW_MARGIN

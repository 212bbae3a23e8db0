"""Asks JetStream why acknowledgements are missing: whether the streams of the write still store messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mama_spark.contracts.errors import MamaError, Unavailable

from ..jetstream.answers import ApiError, ApiForbidden

#: Maximum number of streams to ask about.
MOST_STREAMS = 3
#: Seconds to wait for an answer; the publisher waits meanwhile.
ANSWER_TIME = 2.0
#: Seconds between two requests, in which a working stream stores the latest resends.
BETWEEN = 0.5


def explain(last_sequence: Callable[[str], int], server: str, streams: Sequence[str]) -> str:
    """Why ``streams`` do not acknowledge messages: a sentence for the log. Never raises :class:`MamaError`.

    :param last_sequence: asks for the last sequence of a stream; raises :class:`MamaError`
    :param server: name and version
    """
    if not streams:
        return f"{server} acknowledges nothing; its streams are not known here (no permission to ask JetStream)"
    asked = streams[:MOST_STREAMS]
    try:
        before = [last_sequence(name) for name in asked]
        time.sleep(BETWEEN)
        after = [last_sequence(name) for name in asked]
    except ApiForbidden as e:
        return f"{server} acknowledges nothing, and {e}, which would tell why"
    except ApiError as e:
        return f"{server} acknowledges nothing: {e}"
    except Unavailable as e:
        return f"{server} is connected, but JetStream does not answer: {e}"
    except MamaError as e:
        return f"{server} acknowledges nothing, and cannot be asked why: {e}"
    moved = [name for name, a, b in zip(asked, before, after, strict=True) if b > a]
    if moved:
        return (
            f"{server} stores messages of stream {moved[0]!r}, but its acknowledgements do not arrive; is the user "
            "allowed to subscribe to _INBOX.>?"
        )
    where = ", ".join(f"stream {name!r} stays at sequence {last:,}" for name, last in zip(asked, after, strict=True))
    return (
        f"{server} answers, but stores nothing: {where}. Look at its log and its disk: after a write that failed (disk "
        "full, quota, I/O error) nats-server answers no publish any more, also when there is room again; make room, "
        "then it must be restarted; what was acknowledged is stored, what waits is not"
    )

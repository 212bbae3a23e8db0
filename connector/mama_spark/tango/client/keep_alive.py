"""The times at which a client looks for heartbeats, confirms its subscriptions, and tries again (RFC 12). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mama_spark.contracts.backoff import Backoff

HEARTBEAT_AGE = 10.0  #: seconds; a server whose last heartbeat is older is missing
_RETRY = Backoff(1.0, 10.0, jitter=0.3)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Periods of the keep-alive thread, in seconds. The defaults are those of cppTango (RFC 12, TG-36, TG-37, TG-41).

    :ivar check: period of heartbeat checks; also the shortest time between two errors of one subscription
    :ivar heartbeat: largest age of the last heartbeat of a channel; servers send one every 9 s
    :ivar confirm: period of confirmations; servers end subscriptions that were not confirmed for 600 s
    :ivar retry: delays between attempts to negotiate with a server that cannot be reached
    :ivar refused: delays between attempts to subscribe to an attribute that sends no such events now; None: as
        ``retry``
    """

    check: float = 10.0
    heartbeat: float = HEARTBEAT_AGE
    confirm: float = 200.0
    retry: Backoff = _RETRY
    refused: Backoff | None = None

"""When a client looks for heartbeats, confirms its subscriptions, and tries again (RFC 12). Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from zlib import crc32

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


class RetryDelays:
    """Delays of retries, with the same jitter for all subscriptions of one name: they are negotiated together.

    :param seed: from 0 to 1; None: random
    """

    def __init__(self, seed: float | None) -> None:
        self._seed = random.random() if seed is None else seed

    def of(self, backoff: Backoff, name: str, failures: int) -> float:
        return backoff.delay(failures, lambda: (self._seed + crc32(f"{failures} {name}".encode()) / 2**32) % 1)

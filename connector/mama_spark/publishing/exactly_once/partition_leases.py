"""Leases of one attempt on its partition, one a stream; one thread renews them, one notes where streams end.

A lock guards the leases; no thread holds it while it waits for the middleware.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mama_spark.contracts.batch_ledger import BatchLedger, MarkerChanged
from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.publishing.window.stream_ends import StreamEnds

from . import protocol
from .protocol import Attempt, Superseded, TaskMarker

logger = logging.getLogger("mama_spark")

#: Fractions of a lease: time between two renewals; time after which the owner stops sending.
RENEWAL, LEASE_MARGIN = 1 / 3, 0.8
_AGAIN = 0.05  #: seconds to the next try after a failed or slow renewal


def lease_end(began: float, seconds: float) -> float:
    """Time until which no other attempt takes over, if the marker was written after ``began`` for a lease of
    ``seconds``."""
    return began + LEASE_MARGIN * seconds


def lease_clock() -> float:
    """Seconds, including sleep of the machine where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """Lease of this attempt on the partition in one stream.

    :ivar task: task marker as last read or written; ``revision``: its revision
    :ivar ends: last sequences of the stream: one from before this attempt published, others noted since
    :ivar until: end of the lease by :func:`lease_end`, in seconds of :func:`lease_clock`
    """

    key: str
    task: TaskMarker
    revision: int
    ends: StreamEnds
    until: float


class PartitionLeases:
    """``SendGuard`` over the leases of all streams.

    :param seconds: length of a lease; ``clock``: time of leases
    """

    def __init__(
        self,
        ledger: BatchLedger,
        me: Attempt,
        seconds: float,
        sent_to: Callable[[], tuple[str, ...]],
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._ledger, self._me, self._seconds, self._sent_to, self._clock = ledger, me, seconds, sent_to, clock
        self._lock = threading.Lock()
        self._leases: dict[str, PartitionLease] = {}  # by stream
        self._lost: MamaError | None = None
        self._closed, self._renew_now = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._renew_all, name="mama-batch-lease", daemon=True)
        self._noter = threading.Thread(target=self._note_ends, name="mama-batch-ends", daemon=True)

    def add(self, stream: str, lease: PartitionLease) -> None:
        with self._lock:
            self._leases[stream] = lease
        if self._keeper.ident is None:
            self._keeper.start()
            self._noter.start()
        if self._clock() >= lease.until:
            self._renew_now.set()

    def stop(self) -> list[PartitionLease]:
        """Stop renewing; returns the leases as last stored. May be repeated."""
        self._closed.set()
        self._renew_now.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        with self._lock:
            leases, self._leases = self._leases, {}
        return list(leases.values())

    def join(self) -> None:
        """Wait, after :meth:`stop`, until no thread uses the ledger: another ledger may get its connection."""
        if self._noter.ident is not None:
            self._noter.join()

    def may_send(self) -> bool:
        with self._lock:
            lost, leases = self._lost, list(self._leases.values())
        if lost is not None:
            raise lost
        now, servers = self._clock(), self._sent_to()
        if any(server not in lease.task.servers for lease in leases for server in servers):
            self._renew_now.set()  # nothing is sent to a server before the marker names it
            return False
        return all(now < lease.until for lease in leases)

    @property
    def expired(self) -> bool:
        with self._lock:
            return any(self._clock() >= lease.until for lease in self._leases.values())

    def end_before(self, stream: str, since: float) -> int:
        """A sequence below all messages that the stream got since this moment (monotonic seconds)."""
        with self._lock:
            return self._leases[stream].ends.before(since)

    def note_end(self, stream: str, last: int) -> None:
        with self._lock:
            if (lease := self._leases.get(stream)) is not None:
                lease.ends.note(time.monotonic(), last)

    # --- the thread that notes ends: a stream without a leader must not keep the leases of others waiting ------------

    def _note_ends(self) -> None:
        while not self._closed.wait(self._seconds * RENEWAL):
            with self._lock:
                streams = list(self._leases)
            for name in streams:
                with contextlib.suppress(MamaError):
                    self.note_end(name, self._ledger.bounds(name).last)

    # --- the thread that renews --------------------------------------------------------------------------------------

    def _renew_all(self) -> None:
        while not self._closed.is_set():
            self._renew_now.wait(self._seconds * RENEWAL)
            self._renew_now.clear()
            with self._lock:
                leases = dict(self._leases)
            for name, lease in leases.items():
                if self._closed.is_set():
                    return
                try:
                    renewed = self._renewed(name, lease)
                except (Superseded, ConfigError) as e:
                    with self._lock:
                        self._lost = e
                    return
                except MamaError as e:  # an expired lease stops all sends until a renewal succeeds
                    logger.info("the marker of partition %d is not renewed: %s", self._me.partition, e)
                    renewed = lease
                with self._lock:
                    self._leases[name] = renewed
                if self._clock() >= renewed.until:  # it failed, or took longer than the lease
                    self._closed.wait(_AGAIN)
                    self._renew_now.set()

    def _renewed(self, name: str, lease: PartitionLease) -> PartitionLease:
        me, began, servers = self._me, self._clock(), self._sent_to()
        batch = self._ledger.marker(me.key(name, "batch"))
        protocol.require_run(me, protocol.batch_marker(batch.value))
        mine = replace(lease.task, renewed=lease.task.renewed + 1, servers=servers)
        try:
            revision = self._ledger.set_marker(lease.key, protocol.encode(mine), lease.revision)
        except MarkerChanged:
            marker = self._ledger.marker(lease.key)
            found = protocol.task_marker(marker.value)
            if found is None or found.owner != me.owner:
                raise Superseded(f"another attempt publishes partition {me.partition} by now") from None
            self._renew_now.set()  # the answer of a renewal was lost: the marker's age is unknown
            return replace(lease, task=found, revision=marker.revision)
        return replace(lease, task=mine, revision=revision, until=lease_end(began, self._seconds))

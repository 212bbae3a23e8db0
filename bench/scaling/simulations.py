"""The simulations by name: each module has what :class:`Simulation` says."""

from __future__ import annotations

import resource
from typing import Protocol

from . import billion_rows, flight_log_rows, micro_batches, partition_reports, replicas, sources, streams, topics


class Simulation(Protocol):
    """One thing that there are more and more of.

    :ivar COLUMNS: measured value -> what it is, for people
    :ivar GROWS: the value whose growth is told; None: all are for one row
    """

    @property
    def TITLE(self) -> str: ...

    @property
    def UNIT(self) -> str: ...

    @property
    def SIZES(self) -> tuple[int, ...]: ...

    @property
    def COLUMNS(self) -> dict[str, str]: ...

    @property
    def GROWS(self) -> str | None: ...

    def measure(self, size: int, /) -> dict[str, float]: ...


SIMULATIONS: dict[str, Simulation] = {
    "partition_reports": partition_reports, "micro_batches": micro_batches, "billion_rows": billion_rows,
    "flight_log_rows": flight_log_rows, "topics": topics, "replicas": replicas, "sources": sources, "streams": streams,
}  # fmt: skip


def measure(name: str, size: int) -> dict[str, float]:
    """In a process of its own, whose memory it adds."""
    found = SIMULATIONS[name].measure(size)
    return {"size": size, **found, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

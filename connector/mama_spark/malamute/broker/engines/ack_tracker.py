"""Outcomes of each client's messages, kept until the broker requests them (SYNC, caused by a PING). Pure.

An outcome is added when a message is accepted, before its transaction is committed; :meth:`AckTracker.refuse` corrects
those of a failed transaction, also what :meth:`AckTracker.take` has returned since the last :meth:`AckTracker.settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome

#: Most runs in one client's answer, which must fit in a field of 65,535 bytes, 13 per run.
MOST_RUNS = 4096
MOST_CLIENTS = 100_000
_KEPT = (StoreOutcome.STORED, StoreOutcome.DUPLICATE)


class OutcomeRuns:
    """Outcomes of one client's messages in the order of its sends, as runs of equal ones with consecutive sequences."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # outcome, count, first

    def add(self, outcome: StoreOutcome, first: int = 0, count: int = 1) -> None:
        runs = self._runs
        if runs:
            last = runs[-1]
            if last[0] == outcome and (last[2] + last[1] if last[2] else 0) == first:
                last[1] += count
                return
            if len(runs) >= MOST_RUNS:
                self._merge_older_half()
        self._runs.append([outcome, count, first])

    def _merge_older_half(self) -> None:
        """Merge the older half into one run without sequences (0) to bound the memory; the newer half may change."""
        squeezed: list[list[int]] = []
        old, new = self._runs[: MOST_RUNS // 2], self._runs[MOST_RUNS // 2 :]
        for outcome, count, first in old:
            if outcome in _KEPT:
                outcome, first = StoreOutcome.STORED, 0
            if squeezed and squeezed[-1][0] == outcome and not first:
                squeezed[-1][1] += count
            else:
                squeezed.append([outcome, count, first])
        self._runs = squeezed + new

    def refuse(self, above: int) -> None:
        """No message with a higher sequence is stored."""
        found: list[list[int]] = []
        for outcome, count, first in self._runs:
            stored = min(count, max(0, above - first + 1)) if outcome in _KEPT and first else count
            if stored:
                found.append([outcome, stored, first])
            if stored < count:
                found.append([StoreOutcome.REFUSED, count - stored, 0])
        self._runs = found

    def acks(self) -> tuple[AckRun, ...]:
        return tuple(AckRun(StoreOutcome(outcome), count, first) for outcome, count, first in self._runs)


T = TypeVar("T")


class PerClient(Generic[T]):
    """Values per client until they are requested, made by ``make``; beyond the limit the oldest are dropped."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: dict[Hashable, T] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, client: Hashable) -> T:
        found = self._of.get(client)
        if found is None:
            if len(self._of) >= MOST_CLIENTS:
                del self._of[next(iter(self._of))]
            found = self._of[client] = self._make()
        return found

    def pop(self, client: Hashable) -> T | None:
        return self._of.pop(client, None)


class AckTracker(PerClient[OutcomeRuns]):
    """The :class:`OutcomeRuns` of all clients, before and after their batches are stored."""

    def __init__(self) -> None:
        super().__init__(OutcomeRuns)
        self._taken: list[OutcomeRuns] = []

    def add(self, client: Hashable, outcome: StoreOutcome, first: int = 0, count: int = 1) -> None:
        (self._of.get(client) or self.of(client)).add(outcome, first, count)

    def take(self, client: Hashable) -> OutcomeRuns:
        """The outcomes added since the last call; they may still change until :meth:`settle`."""
        runs = self.pop(client)
        if runs is None:
            return OutcomeRuns()
        self._taken.append(runs)
        return runs

    def refuse(self, above: int) -> None:
        for runs in (*self._of.values(), *self._taken):
            runs.refuse(above)

    def settle(self) -> None:
        """All added outcomes are final."""
        self._taken.clear()

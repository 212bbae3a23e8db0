"""What became of each client's messages, until it asks. Pure.

Outcomes are written down when a message is taken, before its transaction is through; :meth:`AckTracker.refuse` corrects
what a failed transaction makes wrong, also in what :meth:`AckTracker.take` has handed out since the last
:meth:`AckTracker.settle`.
"""

from __future__ import annotations

from collections.abc import Hashable

from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome

#: Runs that one client's answer has at most. An answer has to fit in a field of 65,535 octets, 13 a run.
MOST_RUNS = 4096
#: Clients with something open. One that goes without asking is forgotten when so many came after it.
MOST_CLIENTS = 100_000
_KEPT = (StoreOutcome.STORED, StoreOutcome.DUPLICATE)


class OutcomeRuns:
    """Outcomes of one client's messages in the order of its sends, equal ones with consecutive sequences together."""

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
                self._squeeze()
        self._runs.append([outcome, count, first])

    def _squeeze(self) -> None:
        """Give up sequences (0 = not numbered) rather than grow: what is stored in a row becomes one run.

        The newer half stays as it is, for what is not decided yet is there.
        """
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
        """Nothing with a higher sequence is stored after all."""
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


class AckTracker:
    """The open :class:`OutcomeRuns` of all clients."""

    def __init__(self) -> None:
        self._open: dict[Hashable, OutcomeRuns] = {}
        self._taken: list[OutcomeRuns] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, client: Hashable, outcome: StoreOutcome, first: int = 0, count: int = 1) -> None:
        runs = self._open.get(client)
        if runs is None:
            if len(self._open) >= MOST_CLIENTS:
                del self._open[next(iter(self._open))]
            runs = self._open[client] = OutcomeRuns()
        runs.add(outcome, first, count)

    def take(self, client: Hashable) -> OutcomeRuns:
        """What was added since the last time; it may still change until :meth:`settle`."""
        runs = self._open.pop(client, None)
        if runs is None:
            return OutcomeRuns()
        self._taken.append(runs)
        return runs

    def refuse(self, above: int) -> None:
        """The messages with higher sequences were not stored."""
        for runs in (*self._open.values(), *self._taken):
            runs.refuse(above)

    def settle(self) -> None:
        """All that was added is decided."""
        self._taken.clear()

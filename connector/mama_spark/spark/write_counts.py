"""Adds up what the tasks of a write report of themselves while they publish. Pure.

A report is one datagram of JSON, and has all counts of its task so far: one that is lost costs nothing. Spark has no
way for them: accumulators, and messages to the commit, reach the driver when a task has ended.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, dataclass

#: Local property of Spark: ``host:port:token`` of the driver that shows the progress.
PROPERTY = "mama.progress"
#: Bytes of a report at most: one packet.
_MOST_BYTES = 1400
_MOST_TEXT = 300
#: Micro-batches that are kept task by task; reports of older ones are not expected.
_MOST_JOBS = 50


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Counts of one attempt at one partition, in messages.

    :ivar job: the write, or the micro-batch
    :ivar attempt: a later one has a greater number
    :ivar taken: messages of the rows that came from Spark
    :ivar waits_for: what the task waits for; empty = nothing
    :ivar ended: whether nothing follows
    """

    job: str
    partition: int
    attempt: int
    taken: int = 0
    acked: int = 0
    failed: int = 0
    in_flight: int = 0
    waits_for: str = ""
    ended: bool = False


def encode(token: str, counts: TaskCounts) -> bytes:
    fields = asdict(counts) | {"waits_for": counts.waits_for[:_MOST_TEXT], "token": token}
    text = json.dumps(fields, ensure_ascii=False).encode()
    if len(text) > _MOST_BYTES:
        text = json.dumps(fields | {"waits_for": ""}).encode()
    return text


def decode(token: str, datagram: bytes) -> TaskCounts | None:
    """The counts; None: they are not of a task of this driver."""
    try:
        fields = json.loads(datagram)
        if not hmac.compare_digest(str(fields.pop("token")), token):
            return None
        counts = TaskCounts(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    numbers = (counts.partition, counts.attempt, counts.taken, counts.acked, counts.failed, counts.in_flight)
    return counts if all(isinstance(n, int) for n in numbers) and isinstance(counts.waits_for, str) else None


class WriteCounts:
    """The sum over all tasks, of the latest attempt at each partition; ``done``: messages with an outcome."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, TaskCounts]] = {}
        self._before = (0, 0)  # acknowledged and failed, of forgotten jobs

    def add(self, counts: TaskCounts) -> None:
        """Take a report; they may come in any order."""
        tasks = self._jobs.setdefault(counts.job, {})
        known = tasks.get(counts.partition)
        if known is None or _age(known) <= _age(counts):
            tasks[counts.partition] = counts
        if len(self._jobs) > _MOST_JOBS:
            forgotten = self._jobs.pop(next(iter(self._jobs))).values()
            acked, failed = self._before
            self._before = acked + sum(t.acked for t in forgotten), failed + sum(t.failed for t in forgotten)

    @property
    def acked(self) -> int:
        return self._before[0] + sum(task.acked for tasks in self._jobs.values() for task in tasks.values())

    @property
    def failed(self) -> int:
        return self._before[1] + sum(task.failed for tasks in self._jobs.values() for task in tasks.values())

    @property
    def done(self) -> int:
        return self.acked + self.failed

    def note(self) -> str:
        """Failures, messages in flight, partitions at work, and what those wait for that wait."""
        if not self._jobs:
            return "waits for Spark to start the tasks"
        newest = list(self._jobs.values())[-1]
        at_work = [task for task in newest.values() if not task.ended]
        parts = [f"{self.failed:,} failed"] if self.failed else []
        if not at_work:
            return ", ".join([*parts, f"{len(newest)} partitions done, waits for the others and the commit"])
        parts.append(f"{sum(task.in_flight for task in at_work):,} in flight")
        parts.append(f"{len(at_work)} partition{'' if len(at_work) == 1 else 's'} at work")
        reasons = sorted({task.waits_for for task in at_work if task.waits_for})
        if reasons and all(task.waits_for for task in at_work):
            parts.append(f"waits for {reasons[0]}" + (f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""))
        return ", ".join(parts)


def _age(counts: TaskCounts) -> tuple[int, bool, int]:
    """The key that orders reports of a partition as they were made."""
    return counts.attempt, counts.ended, counts.taken + counts.acked + counts.failed

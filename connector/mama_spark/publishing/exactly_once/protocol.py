"""How each row of a batch is stored once, over any number of attempts and however long they are apart. Pure.

A *write* is one streaming query, or the batch writes of one ``txnAppId``. It has numbered *batches*. A *run* tries a
batch with a number of partitions that does not change; an *attempt* tries one partition of it. Whatever ends an attempt
(an error, a killed worker, driver or broker), the same run or another one begins again at any later time.

Two markers for each stream that a batch publishes to, both changed by compare-and-set only:

* the **batch marker** names the batch, the run that has it, and the last sequence of the stream before the batch began;
* the **task marker** of each partition names batch, run and the attempt that owns the partition.

The states of one partition and stream, in the order in which an attempt passes through them::

    batch marker:  another batch ── new ──────────────► this batch, this run, open
                   this batch, another run ── seize ──► this batch, this run, not open
                   not open ── wait a lease, servers ─► open, with the end of what earlier runs stored
    task marker:   another run ── new ────────────────► owned: first attempt
                   released ── take ──────────────────► owned: repetition
                   owned by another ── wait a lease ──► owned: repetition
    repetition:    wait for servers ─► read back ─► settle what is there ─► publish the rest
    at last:       release; Spark commits

*Nothing is published before both markers are stored*, so what this batch has in the stream lies behind the sequence
that the batch marker names, and a marker that names this batch proves that something may lie there. A first attempt of
a first run reads nothing back.

**Why a row is not lost.** A row is settled without being sent only if a message or row of a pack with its content was
read from the stream, and each stored row matches one row: within a partition by :class:`.found_rows.FoundRows`, between
partitions by claims (:mod:`.matching`). Otherwise it is published, with an id that no stored message of this partition
has, so no broker drops it as another row.

**Why a row is not doubled.** Before an attempt reads back, nobody else publishes rows of its partition: the owner
renews its task marker, and sends nothing when it could not renew it for a lease; the next attempt changes the marker
only after it has stood still for a lease. So attempts follow one another. What is still on its way from the one before
is waited for: a task marker names the *servers* that its owner sends to, each before the first message goes there, and
who takes it over first has the ledger say of each that it will hand on nothing any more
(:meth:`~mama_spark.contracts.batch_ledger.BatchLedger.why_unfenced`). So each attempt reads all that those before it
have stored, or will store. A marker that is released names none if all was answered. What a leader has taken and not
stored yet is waited for, too (:meth:`~mama_spark.contracts.batch_ledger.BatchLedger.decided_last`). The runs of a batch
follow one another in the same way: owners look at the batch marker, too, when they renew, and who opens it has waited
for the servers of all task markers of the batch.

**A message whose acknowledgement is lost** is looked for in the stream before it is sent again, and not before it is
stored or lost, so that there is one copy of it at a time. What the broker remembers of ids is not relied upon.

**A stream that ends before the batch began** was restored from an older copy, and has none of the batch: from there on
what the repetition stores is read back. (A stream that has grown again since lacks what it lost, and nothing else.)

**Another number of partitions** moves rows to other tasks. What earlier runs have stored of the whole batch is looked
through by every task, and a stored row is *claimed* before it settles one: see :mod:`.matching`. No message of a run
lies before the end that its batch marker names, so no task claims what another one of this run has just published.

**Limits of the guarantee**: messages that are removed before they are read back (then the write fails, or publishes
all, by ``onRetention``), markers that are removed, rows that are others in the repetition, servers that are not waited
for (``onSilentServer``), a leader that does not know that another one was elected, and that only our ledger asks while
a lease lasts (elections begin after 4 s, and it finds out within 20 s), and a process that stands still between a look
at its marker and the send that follows, or with messages in the buffers of its own socket, for longer than a lease and
the duplicate window together.

``tests/support/publishing/exactly_once_model.py`` explores all this in every order of steps, and each limit, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import orjson
from xxhash import xxh3_128_hexdigest

from mama_spark.contracts.batch_ledger import Marker
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.record_log import Bounds

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one partition of a batch.

    :ivar write: identity of the write: query id or ``txnAppId``
    :ivar run: of the query, or of the job
    :ivar owner: another one for each attempt
    :ivar prefix: that the ids of the batch begin with, up to the partition
    :ivar form: how rows become messages: a repetition must do it alike
    :ivar numbered_by_user: ``batch`` is ``txnVersion``
    """

    write: str
    batch: int
    run: str
    partition: int
    owner: str
    prefix: str
    form: str
    numbered_by_user: bool = False

    @property
    def own_prefix(self) -> bytes:
        """Common prefix of all ids of this partition."""
        return f"{self.prefix}{self.partition}-".encode()

    def key(self, stream: str, *kind: object) -> str:
        """Key of a marker."""
        return ".".join((token(self.write), token(stream), *map(str, kind)))


def token(name: str) -> str:
    """A name as one token of a key."""
    return name if _PLAIN.fullmatch(name) else f"x-{xxh3_128_hexdigest(name.encode())}"


@dataclass(frozen=True, slots=True)
class BatchMarker:
    """:ivar runs: all that had the batch, the present one last
    :ivar after: last sequence of the stream before the batch began; ``identity``: of the stream then
    :ivar until: last sequence before the present run may publish; None: there was no earlier run
    :ivar open: the present run may publish
    """

    batch: int
    runs: tuple[str, ...]
    prefix: str
    form: str
    identity: str
    after: int
    until: int | None = None
    open: bool = True

    @property
    def run(self) -> str:
        return self.runs[-1]


@dataclass(frozen=True, slots=True)
class TaskMarker:
    """:ivar after: last sequence of the stream before the first attempt of this run
    :ivar released: its owner publishes nothing any more
    :ivar renewed: how often
    :ivar servers: that may still hand on what its owner, or those before it, have sent
    """

    batch: int
    run: str
    owner: str
    after: int
    released: bool = False
    renewed: int = 0
    servers: tuple[str, ...] = ()


def encode(marker: BatchMarker | TaskMarker) -> bytes:
    return orjson.dumps(marker)


def batch_marker(value: bytes) -> BatchMarker | None:
    """:raises ConfigError: it is none of ours"""
    found = _decoded(value)
    return None if found is None else BatchMarker(**{**found, "runs": tuple(found["runs"])})


def task_marker(value: bytes) -> TaskMarker | None:
    """:raises ConfigError: it is none of ours"""
    found = _decoded(value)
    return None if found is None else TaskMarker(**{**found, "servers": tuple(found.get("servers", ()))})


def servers_of(markers: Iterable[Marker], batch: int) -> tuple[str, ...]:
    """All that the task markers of a batch name."""
    found = (task_marker(marker.value) for marker in markers)
    names = [server for task in found if task is not None and task.batch == batch for server in task.servers]
    return tuple(dict.fromkeys(names))


def _decoded(value: bytes) -> dict[str, Any] | None:
    if not value:
        return None
    try:
        found: dict[str, Any] = orjson.loads(value)
        int(found["batch"]), int(found["after"])
    except (ValueError, TypeError, KeyError) as e:
        raise ConfigError(f"not a marker of mama-spark: {value[:100]!r}; does something else write there?") from e
    return found


class Superseded(Unavailable):
    """Another attempt has taken over: this one publishes nothing any more."""


def require_run(me: Attempt, found: BatchMarker | None) -> None:
    """:raises Superseded: the batch marker does not name this run"""
    if found is None or (found.batch, found.run) != (me.batch, me.run):
        raise taken_over(me)


def taken_over(me: Attempt) -> Superseded:
    return Superseded(f"another run of the same write has taken batch {me.batch} over")


class Step(Enum):
    """How the turn at a marker ends."""

    GO = "go"  #: it names this attempt
    OLDER = "older"  #: a later batch has begun: where this one began is not known any more


class Turn:
    """Has a marker name this attempt: :meth:`step` says what to do with what was read, until it has come to an end.

    :param lease: seconds for which a marker must stand still, by our own clock, before it is taken from its owner
    """

    def __init__(self, me: Attempt, lease: float) -> None:
        self._me, self._lease = me, lease
        self._revision, self._since = -1, 0.0

    def step(self, marker: Marker, now: float) -> BatchMarker | TaskMarker | float | Step:
        """The marker to write in place of this one; or seconds until it is to be read again; or the last step."""
        raise NotImplementedError

    def _wait(self, marker: Marker, now: float) -> float:
        """Seconds until this revision has stood still for a lease."""
        if marker.revision != self._revision:
            self._revision, self._since = marker.revision, now
        return self._lease - (now - self._since)


class BatchTurn(Turn):
    """Has the batch marker name this run. It ends with ``GO``, or with ``OLDER``: where the batch began is not known.

    :param bounds: of the stream at a moment before this partition is published
    :param ask_last: the last sequence of the stream when nothing of earlier runs is on its way any more
    :ivar last: the last sequence at a moment before this partition is published: of ``bounds``, or of ``ask_last``
    """

    def __init__(self, me: Attempt, lease: float, bounds: Bounds, ask_last: Callable[[], int]) -> None:
        super().__init__(me, lease)
        self._identity, self.last, self._ask_last = bounds.identity, bounds.last, ask_last

    def step(self, marker: Marker, now: float) -> BatchMarker | float | Step:
        """:raises Superseded: a later run has the batch"""
        me, found, wait = self._me, batch_marker(marker.value), self._wait(marker, now)
        if found is None or found.batch < me.batch:  # nobody has begun it
            return BatchMarker(me.batch, (me.run,), me.prefix, me.form, self._identity, self.last)
        if found.batch > me.batch:
            return Step.OLDER
        if found.run != me.run and me.run in found.runs:
            raise taken_over(me)
        check_same_write(me, found)
        if found.run != me.run:  # an earlier run has it: seize it
            return replace(found, runs=(*found.runs[-7:], me.run), after=min(found.after, self.last), open=False)
        if found.open:
            restored = self.last < found.after  # what this run stores from there on is of the batch, too
            return replace(found, after=self.last) if restored else Step.GO
        if wait > 0:  # perhaps somebody of the earlier run still publishes
            return wait
        self.last = self._ask_last()
        return replace(found, open=True, until=self.last)


class TaskTurn(Turn):
    """Has the task marker name this attempt. It ends with ``GO``.

    :param after: last sequence of the stream at some moment before
    :param servers: that this attempt sends to
    :ivar began: when the marker was not written yet, in the seconds of ``now``
    :ivar repeated: there was an attempt before in this run
    :ivar before: servers that may still hand on what the attempts before have sent
    """

    def __init__(self, me: Attempt, lease: float, after: int, now: float, servers: tuple[str, ...] = ()) -> None:
        super().__init__(me, lease)
        self._after, self.began, self.repeated = after, now, False
        self._servers, self.before = servers, tuple[str, ...]()

    def step(self, marker: Marker, now: float) -> TaskMarker | float | Step:
        me, found, wait = self._me, task_marker(marker.value), self._wait(marker, now)
        if found is None or (found.batch, found.run) != (me.batch, me.run):  # nobody of this run has begun
            self.began = now
            return TaskMarker(me.batch, me.run, me.owner, self._after, servers=self._servers)
        if found.owner == me.owner:
            return Step.GO
        if not found.released and wait > 0:
            return wait
        self.began, self.repeated, self.before = now, True, found.servers
        both = tuple(dict.fromkeys((*found.servers, *self._servers)))
        after = min(found.after, self._after)
        return replace(found, owner=me.owner, after=after, released=False, renewed=0, servers=both)


def check_same_write(me: Attempt, found: BatchMarker) -> None:
    """:raises ConfigError: an earlier run gave the rows of this batch other ids, or packed them otherwise"""
    if found.prefix != me.prefix:
        raise ConfigError(
            f"batch {me.batch} was begun with ids that begin with {found.prefix!r}, and now they begin with "
            f"{me.prefix!r}: what is stored cannot be recognised. Set option idPrefix as it was until the batch is done"
        )
    if found.form != me.form:
        raise ConfigError(
            f"batch {me.batch} was begun as {found.form}, and now its messages are made as {me.form}: what is stored "
            "cannot be recognised. Set pack, idColumn and the columns as they were until the batch is done"
        )

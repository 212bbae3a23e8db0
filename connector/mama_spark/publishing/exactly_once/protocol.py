"""Protocol by which each row of a batch is stored once, over any number of attempts at any distance in time. Pure.

A *write* is one streaming query, or the batch writes of one ``txnAppId``. It has numbered *batches*. A *run* tries a
batch with a fixed number of partitions; an *attempt* tries one partition of it. After any failure (an error, a killed
worker, driver or broker), the same run or another one begins again at any later time.

Two markers for each stream of a batch, both changed by compare-and-set only:

* the **batch marker** names the batch, its run, and the last sequence of the stream before the batch began;
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

*Nothing is published before both markers are stored*. So the rows of this batch lie behind the sequence in the batch
marker, and a marker of this batch proves that rows may be stored. A first attempt of a first run reads nothing back.

**Why a row is not lost.** A row is settled without being sent only if a message or row of a pack with its content was
read from the stream, and each stored row matches one row: within a partition by :class:`.found_rows.FoundRows`, between
partitions by claims (:mod:`.matching`). Otherwise it is published, with an id that no stored message of this partition
has, so no broker drops it as another row.

**Why a row is not doubled.** Attempts at a partition follow one another. The owner renews its task marker, and stops
sending after a lease without a renewal; the next attempt changes the marker only after it has stood still for a lease,
and reads back then. Messages in transit from earlier attempts are waited for: a task marker names the *servers* that
its owner sends to, each before its first message, and the attempt that takes the marker over asks the ledger until none
of them hands on a message (:meth:`~mama_spark.contracts.batch_ledger.BatchLedger.why_unfenced`). So each attempt reads
every message that earlier ones have stored or will store. A released marker names no server if all messages were
answered. Messages that a leader has taken and not stored yet are waited for, too
(:meth:`~mama_spark.contracts.batch_ledger.BatchLedger.decided_last`). The runs of a batch follow one another in the
same way: owners check the batch marker at each renewal, and a run opens it after a wait for the servers of all task
markers of the batch.

**A message whose acknowledgement is lost** is looked for in the stream before it is resent, and only once it is stored
or lost, so that one copy of it exists at a time. The broker's memory of ids is not relied upon.

**A stream that ends before the batch began** was restored from an older copy, and holds no row of the batch: rows that
the repetition stores are read back from that end on. (A stream that has grown again since lacks only what it lost.)

**Another number of partitions** moves rows to other tasks. Every task reads all that earlier runs have stored of the
batch, and *claims* a stored row before it matches a row with it: see :mod:`.matching`. Messages of a run lie behind the
end in its batch marker, so no task claims a row that another task of this run has just published.

**Limits of the guarantee**: messages removed before they are read back (the write fails, or publishes all, by
``onRetention``); removed markers; rows that differ in the repetition; servers that are not waited for
(``onSilentServer``); a replaced leader that does not know of the election and is asked by our ledger alone while a
lease lasts (elections begin after 4 s, and it finds out within 20 s); a process that stands still between a look at its
marker and the next send, or with messages in its socket's buffers, for longer than a lease and the duplicate window
together.

``tests/support/publishing/exactly_once_model.py`` explores this protocol in every order of steps, and each limit, too.
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
    :ivar run, owner: identity of the run of the query or job, and of the attempt
    :ivar prefix: common prefix of the ids of the batch, up to the partition
    :ivar form: how rows become messages; a repetition must use the same
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
        return ".".join((token(self.write), token(stream), *map(str, kind)))


def token(name: str) -> str:
    """A name as one token of a key."""
    return name if _PLAIN.fullmatch(name) else f"x-{xxh3_128_hexdigest(name.encode())}"


@dataclass(frozen=True, slots=True)
class BatchMarker:
    """Value of the batch marker of a stream.

    :ivar runs: the latest runs of the batch, the present one last
    :ivar after: last sequence of the stream before the batch began; ``identity``: of the stream then
    :ivar until: last sequence of the stream before the present run publishes; None = no earlier run
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
    """Value of the task marker of a partition and stream.

    :ivar after: last sequence of the stream before the first attempt of this run
    :ivar released: the owner publishes nothing more
    :ivar servers: servers that may still hand on messages of the owner, or of attempts before it
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
    """None for an empty value; ConfigError: another program wrote it."""
    found = _decoded(value)
    return None if found is None else BatchMarker(**{**found, "runs": tuple(found["runs"])})


def task_marker(value: bytes) -> TaskMarker | None:
    """As :func:`batch_marker`."""
    found = _decoded(value)
    return None if found is None else TaskMarker(**{**found, "servers": tuple(found.get("servers", ()))})


def servers_of(markers: Iterable[Marker], batch: int) -> tuple[str, ...]:
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
    """Another attempt has taken over: this one publishes nothing more."""


def require_run(me: Attempt, found: BatchMarker | None) -> None:
    """Check that the batch marker names this run. Superseded: it does not."""
    if found is None or (found.batch, found.run) != (me.batch, me.run):
        raise taken_over(me)


def taken_over(me: Attempt) -> Superseded:
    return Superseded(f"another run of the same write has taken batch {me.batch} over")


class Step(Enum):
    """Last step of a turn."""

    GO = "go"  #: the marker names this attempt
    OLDER = "older"  #: a later batch has begun, so the start of this one is unknown


class Turn:
    """Steps to a marker that names this attempt; ``lease``: seconds, by our own clock, for which a marker must stand
    still before it is taken from its owner."""

    def __init__(self, me: Attempt, lease: float) -> None:
        self._me, self._lease = me, lease
        self._revision, self._since = -1, 0.0

    def step(self, marker: Marker, now: float) -> BatchMarker | TaskMarker | float | Step:
        """The marker to write in place of this one, or seconds until the next read, or the last step."""
        raise NotImplementedError

    def _wait(self, marker: Marker, now: float) -> float:
        """Seconds until this revision has stood still for a lease."""
        if marker.revision != self._revision:
            self._revision, self._since = marker.revision, now
        return self._lease - (now - self._since)


class BatchTurn(Turn):
    """Makes the batch marker name this run. Ends with ``GO``, or with ``OLDER``.

    :param bounds: bounds of the stream before this partition is published
    :param ask_last: returns the last sequence of the stream once no message of earlier runs is in transit
    :ivar last: last sequence before this partition is published, of ``bounds`` or of ``ask_last``
    """

    def __init__(self, me: Attempt, lease: float, bounds: Bounds, ask_last: Callable[[], int]) -> None:
        super().__init__(me, lease)
        self._identity, self.last, self._ask_last = bounds.identity, bounds.last, ask_last

    def step(self, marker: Marker, now: float) -> BatchMarker | float | Step:
        """As :meth:`Turn.step`. Superseded: a later run has the batch."""
        me, found, wait = self._me, batch_marker(marker.value), self._wait(marker, now)
        if found is None or found.batch < me.batch:  # no run has begun it
            return BatchMarker(me.batch, (me.run,), me.prefix, me.form, self._identity, self.last)
        if found.batch > me.batch:
            return Step.OLDER
        if found.run != me.run and me.run in found.runs:
            raise taken_over(me)
        check_same_write(me, found)
        if found.run != me.run:  # an earlier run has it: seize it
            return replace(found, runs=(*found.runs[-7:], me.run), after=min(found.after, self.last), open=False)
        if found.open:
            restored = self.last < found.after  # rows that this run stores from there on are of the batch, too
            return replace(found, after=self.last) if restored else Step.GO
        if wait > 0:  # the earlier run may still publish
            return wait
        self.last = self._ask_last()
        return replace(found, open=True, until=self.last)


class TaskTurn(Turn):
    """Makes the task marker name this attempt. Ends with ``GO``.

    :param after: last sequence of the stream at an earlier moment
    :param servers: servers that this attempt sends to
    :ivar began: time before the marker was written, in seconds of ``now``
    :ivar repeated: an earlier attempt of this run was there
    :ivar before: servers that may still hand on messages of earlier attempts
    """

    def __init__(self, me: Attempt, lease: float, after: int, now: float, servers: tuple[str, ...] = ()) -> None:
        super().__init__(me, lease)
        self._after, self.began, self.repeated = after, now, False
        self._servers, self.before = servers, tuple[str, ...]()

    def step(self, marker: Marker, now: float) -> TaskMarker | float | Step:
        me, found, wait = self._me, task_marker(marker.value), self._wait(marker, now)
        if found is None or (found.batch, found.run) != (me.batch, me.run):  # no attempt of this run has begun
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
    """Check that ids and form are unchanged. ConfigError: an earlier run made others for the rows of this batch."""
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

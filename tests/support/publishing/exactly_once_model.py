"""The protocol of exactly once in a world where everything goes wrong, explored state by state, breadth first.

Attempts are step machines that follow ``session.py`` and ask the product's own :class:`.BatchTurn`, :class:`.TaskTurn`
and :class:`.Matching` what to do. The world around them is the model: markers changed by compare-and-set, a stream that
remembers no id, servers that stand still with messages in their buffers, messages that stay in the buffer of their
sender, answers that are lost. Between any two steps of an attempt anything else may happen, for any time, so a task
that is killed is one that takes no step any more. An attempt stands still everywhere but between a look at its lease
and the send.

Time goes in ticks: a lease and the time to settle are one each, and what a running server has in its buffers is stored
before the next one. Ages are kept only as far as they make a difference, so there are finitely many states.

In each state no content is stored more often than the batch has it (*doubled*), and the partitions of a run have no
more rows of a content settled than are stored (*lost*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np
from mama_spark.contracts.batch_ledger import Marker
from mama_spark.contracts.record_log import Bounds
from mama_spark.publishing.exactly_once import protocol
from mama_spark.publishing.exactly_once.found_rows import Distinct, FoundRows, keys_of
from mama_spark.publishing.exactly_once.matching import Matching, StoredRows, StreamTables
from mama_spark.publishing.exactly_once.partition_leases import LEASE_MARGIN
from mama_spark.publishing.exactly_once.protocol import (
    Attempt,
    BatchMarker,
    BatchTurn,
    Step,
    Superseded,
    TaskMarker,
    TaskTurn,
    servers_of,
)
from mama_spark.publishing.ids.ids import Digests
from xxhash import xxh3_128_digest

LEASE = SETTLE = 1  # ticks
SERVERS = 2
STREAM, PREFIX = "S", "w-0-"
ENDED = ("idle", "done", "failed", "crashed")

#: What may be done otherwise than by the rules of the protocol: each makes rows double, or loses one.
FAULTS = {
    "no fence": "a message is looked for while the server to which it was sent stands still",
    "no settling": "a server that was seen alive is believed to have nothing in its buffers any more",
    "settling by the clock": "a server that stands still again before its buffers are read has settled all the same",
    "ids are trusted": "a message is sent again without a look while the broker knows its id",
    "named too late": "a server is named in the task marker after the first message went there",
    "fenced before the take": "the servers of an owner are seen alive before its marker is taken from it",
    "names are dropped": "the next attempt names its own servers in place of those for which it still waits",
    "opened without waiting": "a run opens the batch before the lease of the earlier run is over",
    "opened without a fence": "a run opens the batch without a look at the servers of the earlier run",
    "lease outlives its owner": "an owner publishes for longer than its lease",
    "lease begins late": "the lease counts from the write of the task marker, not from the look at the batch marker",
    "renewed without a change": "a renewal whose answer was lost makes the lease longer once more",
    "overwritten": "a task marker or claim is replaced without another look at the batch marker",
    "claim not read again": "a claim that was not written counts all the same",
    "released too early": "a task that gives up messages without an answer names no server in its marker",
    # limits of the guarantee, as far as the socket and the clock do not exclude them
    "sent after the end": "what a killed task has in the buffer of its socket is still sent",
    "sent after the lease": "what a task without a lease has in the buffer of its socket is still sent",
    "clock stands still": "the clock of a task stands still with it",
    "stands still before a send": "a task stands still between the look at its lease and the send",
}


class Id(NamedTuple):
    partition: int
    content: str
    number: int


class Task(NamedTuple):
    """An attempt at a partition of a run, in the order in which the attempts of a partition begin."""

    run: str
    partition: int
    rows: str


@dataclass(frozen=True)
class ModelScope:
    """What is explored.

    :ivar earlier: what a run before these has stored
    :ivar left: what an attempt before these has sent over server 0, which stands still
    :ivar gives_up: how many tasks end with messages without an answer; ``freezes``: how often a server stands still
    :ivar slow: messages that stay in the buffer of their sender; ``lost``: acknowledgements and answers that are lost
    """

    tasks: tuple[Task, ...]
    gives_up: int = 0
    freezes: int = 0
    slow: int = 0
    lost: int = 0
    earlier: tuple[Id, ...] = ()
    left: Id | None = None
    faults: frozenset[str] = frozenset()


class Claimed(NamedTuple):
    run: str
    partition: int
    contents: tuple[tuple[str, int], ...]


class Copy(NamedTuple):
    """A message on its way, in the buffer of its sender's socket (``at_sender``) or in those of a server."""

    task: int
    row: int
    id: Id
    server: int
    at_sender: bool


class Row(NamedTuple):
    """:ivar state: "new", "sent" or "settled"; ``age``: ticks since it was sent first, or last looked for"""

    id: Id | None
    state: str = "new"
    server: int = 0
    sends: int = 0
    age: int = 0


class Actor(NamedTuple):
    """An attempt.

    :ivar at: what it does next
    :ivar changed: markers that others have written since it read them
    :ivar waited: ticks for which the marker at which it waits has stood still
    :ivar last, seen: the end of the stream, and the task marker, when it began
    :ivar write: the marker that it writes next
    :ivar age: ticks of its lease; ``renewing``: since a renewal has looked at the batch marker
    :ivar need: servers that must be fenced before it goes on
    :ivar probes: by server: ticks for which it has been seen alive since the last message went there
    """

    at: str = "idle"
    changed: frozenset[str] = frozenset()
    waited: int | None = None
    last: int = 0
    seen: TaskMarker | None = None
    write: Any = None
    batch: BatchMarker | None = None
    task: TaskMarker | None = None
    repeated: bool = False
    age: int = 0
    renewing: int | None = None
    need: tuple[str, ...] | None = None
    probes: tuple[int | None, ...] = ()
    since: int = 0
    claims: tuple[Claimed, ...] = ()
    rows: tuple[Row, ...] = ()
    server: int = 0
    stopped: bool = False


class World(NamedTuple):
    """:ivar forgotten: how many of the first messages of the stream the broker does not know any more"""

    markers: tuple[tuple[str, Any], ...]
    stored: tuple[Id, ...]
    forgotten: int
    copies: tuple[Copy, ...]
    runs: tuple[bool, ...]
    actors: tuple[Actor, ...]
    gives_up: int
    freezes: int
    slow: int
    lost: int
    stops: int


#: Markers that an attempt has read, beside its task marker.
_WATCHED = {"batch": ("batch",), "write batch": ("batch",), "claim": ("claim",), "write claim": ("claim",)}
Next = Iterator[tuple[str, World]]


class Model:
    def __init__(self, scope: ModelScope) -> None:
        self.scope, self.faults = scope, scope.faults
        self._counts = bool(self.faults & {"ids are trusted", "no fence"})
        self._runs = len({task.run for task in scope.tasks})
        self._margin = inf if "lease outlives its owner" in self.faults else LEASE_MARGIN
        self._me = [
            Attempt("w", 0, task.run, task.partition, str(i), PREFIX, "rows") for i, task in enumerate(scope.tasks)
        ]
        self.rows = Counter("".join(task.rows for task in {t[:2]: t for t in scope.tasks if t.run == "run 1"}.values()))

    def first(self) -> World:
        s = self.scope
        markers: tuple[tuple[str, Any], ...] = ()
        if s.earlier:
            markers = (("batch", BatchMarker(0, ("run 0",), PREFIX, "rows", "", 0)),)
        copies: tuple[Copy, ...] = ()
        runs = (True,) * SERVERS
        if s.left:
            me = self._me[0]
            markers = (
                ("batch", BatchMarker(0, (me.run,), PREFIX, "rows", "", 0)),
                (self._key(0), TaskMarker(0, me.run, "before", 0, servers=("0",))),
            )
            copies, runs = (Copy(-1, 0, s.left, 0, at_sender=False),), (False, *runs[1:])
        actors = (Actor(),) * len(s.tasks)
        return World(
            markers, s.earlier, len(s.earlier), copies, runs, actors, s.gives_up, s.freezes, s.slow, s.lost,
            int("clock stands still" in s.faults),
        )  # fmt: skip

    # --- the world --------------------------------------------------------------------------------------------

    def next(self, w: World) -> Next:
        yield from self._servers(w)
        yield from self._messages(w)
        for i, a in enumerate(w.actors):
            if a.stopped:
                yield f"task {i} goes on", _with(w, i, stopped=False)
            elif a.at == "idle":
                yield from self._begin(w, i, a)
            elif a.at not in ENDED:
                yield from self._step(w, i, a)
                yield from self._end(w, i, a)
                if w.stops:
                    yield f"task {i} and its clock stand still", _with(w._replace(stops=0), i, stopped=True)
        if not any(not c.at_sender and w.runs[c.server] for c in w.copies):
            yield "time passes", self._tick(w)

    def _servers(self, w: World) -> Next:
        for s, runs in enumerate(w.runs):

            def to(state: bool, s: int = s) -> World:
                return w._replace(runs=(*w.runs[:s], state, *w.runs[s + 1 :]))

            busy = any(c.server == s for c in w.copies)
            if runs and w.freezes and (busy or any(a.probes[s] == 0 for a in w.actors if a.probes)):
                yield f"server {s} stands still", to(state=False)._replace(freezes=w.freezes - 1)
            if not runs:
                yield f"server {s} goes on", to(state=True)
                if busy:
                    none = tuple(c for c in w.copies if c.server != s)
                    yield f"server {s} is started anew", to(state=True)._replace(copies=none)

    def _messages(self, w: World) -> Next:
        first = set()
        for n, c in enumerate(w.copies):
            if (c.task, c.server) in first:
                continue
            first.add((c.task, c.server))
            left = (*w.copies[:n], *w.copies[n + 1 :])
            what = f"row {c.row} of task {c.task}"
            if c.at_sender:
                moved = (*w.copies[:n], c._replace(at_sender=False), *w.copies[n + 1 :])
                yield f"{what} reaches server {c.server}", w._replace(copies=moved)
            elif w.runs[c.server]:
                twice = c.id in w.stored[w.forgotten :]
                then = w._replace(copies=left, stored=w.stored if twice else (*w.stored, c.id))
                done = f"the broker knows {what}" if twice else f"{what} is stored"
                a = w.actors[c.task] if c.task >= 0 else Actor("crashed")
                waits = a.at == "publish" and a.rows[c.row].state != "settled"
                if waits:
                    yield f"{done} and acknowledged", _row(then, c.task, c.row, state="settled", age=0)
                if not waits or a.server != c.server:
                    yield f"{done}", then
                elif w.lost:
                    yield f"{done}, the acknowledgement is lost", then._replace(lost=w.lost - 1)

    def _tick(self, w: World) -> World:
        actors = []
        for a in w.actors:
            if a.at not in ENDED and not a.stopped:
                probes = tuple(self._probed(p, w.runs[s]) for s, p in enumerate(a.probes))
                rows = a.rows
                if self._counts:
                    rows = tuple(r._replace(age=1) if r.state == "sent" else r for r in rows)
                a = a._replace(age=self._older(a.age), renewing=self._older(a.renewing), probes=probes, rows=rows)
                a = a._replace(waited=self._older(a.waited))
            actors.append(a)
        copies = w.copies
        if "sent after the lease" not in self.faults:
            copies = tuple(c for c in copies if not c.at_sender or self._holds(actors[c.task]))
        return w._replace(actors=tuple(actors), copies=copies, forgotten=len(w.stored))

    def _older(self, age: int | None) -> Any:
        return None if age is None else min(age + 1, 1)

    def _probed(self, probe: int | None, runs: bool) -> int | None:
        still = not runs and "settling by the clock" not in self.faults
        return None if probe is None or (still and probe < SETTLE) else SETTLE

    # --- an attempt: ends -------------------------------------------------------------------------------------

    def _end(self, w: World, i: int, a: Actor) -> Next:
        """A task that is killed is one that takes no step any more."""
        if "sent after the end" in self.faults and any(c.task == i and c.at_sender for c in w.copies):
            yield f"task {i} is killed", _set(w, i, _over("crashed"))
        if a.at == "publish" and w.gives_up and _doubtful(a):
            then = w._replace(gives_up=w.gives_up - 1)
            yield f"task {i} gives up", self._release(then, i, a, "failed")

    def _release(self, w: World, i: int, a: Actor, at: str) -> World:
        w = w._replace(copies=tuple(c for c in w.copies if c.task != i or not c.at_sender))
        assert a.task is not None
        if self._key(i) not in a.changed:
            servers = () if "released too early" in self.faults else _names(_doubtful(a))
            w = _write(w, i, self._key(i), replace(a.task, released=True, servers=servers))
        return _set(w, i, _over(at, a.rows if at == "done" else ()))

    def _failed(self, w: World, i: int) -> World:
        copies = tuple(c for c in w.copies if c.task != i or not c.at_sender)
        return _set(w._replace(copies=copies), i, _over("failed"))

    def _key(self, i: int) -> str:
        return f"task {self._me[i].partition}"

    # --- an attempt: markers ----------------------------------------------------------------------------------

    def _begin(self, w: World, i: int, a: Actor) -> Next:
        if any(w.actors[n].at == "idle" and self.scope.tasks[n][:2] == self.scope.tasks[i][:2] for n in range(i)):
            return
        begun = a._replace(at="batch", last=len(w.stored), seen=_get(w, self._key(i)), probes=(None,) * len(w.runs))
        yield f"task {i} begins", self._look_at_batch(_set(w, i, begun), i)

    def _step(self, w: World, i: int, a: Actor) -> Next:
        if a.need and (a.at in ("batch", "fence") or "fenced before the take" in self.faults):
            yield from self._probe(w, i, a, map(int, a.need))
        match a.at:
            case "batch":
                yield f"task {i} looks at the batch marker", self._look_at_batch(w, i)
            case "write batch":
                what = "finds the batch marker changed" if "batch" in a.changed else f"writes {_words(a.write)}"
                yield f"task {i} {what}", self._write_batch(w, i, a)
            case "first look":
                yield f"task {i} takes the task marker as it was", self._look_at_task(w, i, again=False)
            case "task":
                yield f"task {i} looks at the task marker", self._look_at_task(w, i)
            case "write task":
                what = f"writes its marker, which names servers {', '.join(a.write.servers)}"
                what = "finds the task marker changed" if self._key(i) in a.changed else what
                yield f"task {i} {what}", self._write_task(w, i, a)
            case "fence":
                if self._fenced(a, a.need or ()):
                    yield f"task {i} reads back", self._match(w, i, a._replace(since=len(w.stored), need=None))
            case "claim":
                yield f"task {i} looks at claim {len(a.claims)}", self._look_at_claim(w, i, a)
            case "write claim":
                yield f"task {i} writes claim {len(a.claims)}", self._write_claim(w, i, a)
            case "publish":
                yield from self._publish(w, i, a)

    def _look_at_batch(self, w: World, i: int) -> World:
        a, lease = w.actors[i], 0 if "opened without waiting" in self.faults else LEASE
        waited = None if "batch" in a.changed else a.waited
        step, last = _batch_step(self._me[i], lease, _get(w, "batch"), waited, a.last, len(w.stored))
        a = a._replace(changed=a.changed - {"batch"}, waited=waited)
        if step == "superseded":
            return self._failed(w, i)
        if step is Step.GO:
            return _set(w, i, a._replace(at="first look", batch=_get(w, "batch"), age=0, waited=None, need=None))
        if isinstance(step, float):
            return _set(w, i, a._replace(at="batch", waited=waited or 0, need=None))
        opens = step.open and step.until is not None
        if opens and "opened without a fence" not in self.faults:
            found = [Marker(1, protocol.encode(v)) for k, v in w.markers if k.startswith("task")]
            need = servers_of(found, 0)
            if a.need is None or not set(need) <= set(a.need):
                return _set(w, i, a._replace(at="batch", need=need, probes=(None,) * len(w.runs)))
            if not self._fenced(a, need):
                return _set(w, i, a)
        return _set(w, i, a._replace(at="write batch", write=step, last=last, waited=None, need=None))

    def _write_batch(self, w: World, i: int, a: Actor) -> World:
        if "batch" not in a.changed:
            w = _write(w, i, "batch", a.write)
        return self._look_at_batch(_with(w, i, at="batch", write=None), i)

    def _look_at_task(self, w: World, i: int, *, again: bool = True) -> World:
        """After a look at the batch marker (``again`` is False), which said go, or again."""
        a, me, key = w.actors[i], self._me[i], self._key(i)
        assert a.batch is not None
        if again and "overwritten" not in self.faults and _get(w, "batch").run != me.run:
            return self._failed(w, i)
        found = _get(w, key) if again else a.seen
        waited = None if again and key in a.changed else a.waited
        after, server = max(a.last, a.batch.until or 0), self._server(w)
        step, repeated, before = _task_step(me, found, waited, after, server)
        a = a._replace(repeated=a.repeated or repeated, changed=a.changed - {key} if again else a.changed)
        if (again and "overwritten" not in self.faults) or "lease begins late" in self.faults:
            a = a._replace(age=0)
        if isinstance(step, float):
            return _set(w, i, a._replace(at="task", waited=waited or 0))
        if "named too late" in self.faults:
            step = replace(step, servers=before)
        if "names are dropped" in self.faults:
            step = replace(step, servers=(server,))
        a = a._replace(need=before, server=int(server), waited=None, seen=None)
        return _set(w, i, a._replace(at="write task", write=step))

    def _server(self, w: World) -> str:
        """Over which an attempt begins."""
        return str(next((s for s, runs in enumerate(w.runs) if runs), 0))

    def _write_task(self, w: World, i: int, a: Actor) -> World:
        if self._key(i) in a.changed:
            return self._look_at_task(_with(w, i, at="task", write=None), i)
        w = _write(w, i, self._key(i), a.write)
        task: TaskMarker = a.write
        a = w.actors[i]._replace(task=task, write=None)
        if "fenced before the take" not in self.faults:
            a = a._replace(probes=(None,) * len(w.runs))
        return _set(w, i, a._replace(at="fence")) if a.repeated else self._match(w, i, a._replace(since=task.after))

    # --- an attempt: what is stored ---------------------------------------------------------------------------

    def _match(self, w: World, i: int, a: Actor) -> World:
        me, batch, task = self._me[i], a.batch, a.task
        assert batch is not None
        assert task is not None
        own = earlier = None
        if a.repeated:
            own = _read(w, task.after, a.since, me.partition)
        if batch.until is not None:
            earlier = _read(w, batch.after, batch.until, None)
        log = tuple((c.contents, c.partition == me.partition) for c in a.claims)
        rows, wanted = _matched(me.partition, self.scope.tasks[i].rows, own, earlier, log)
        if wanted:
            return _set(w, i, a._replace(at="claim", write=Claimed(me.run, me.partition, wanted)))
        return _set(w, i, a._replace(at="publish", rows=rows, claims=(), write=None, batch=None, last=0, need=None))

    def _look_at_claim(self, w: World, i: int, a: Actor) -> World:
        key, me = f"claim {len(a.claims)}", self._me[i]
        found = _get(w, key)
        a = a._replace(changed=a.changed - {key})
        if found is not None and found.run == me.run:
            return self._match(w, i, a._replace(claims=(*a.claims, found)))
        if "overwritten" not in self.faults and _get(w, "batch").run != me.run:
            return self._failed(w, i)
        return _set(w, i, a._replace(at="write claim"))

    def _write_claim(self, w: World, i: int, a: Actor) -> World:
        key = f"claim {len(a.claims)}"
        if key not in a.changed:
            w = _write(w, i, key, a.write)
        elif "claim not read again" not in self.faults:
            return _set(w, i, a._replace(at="claim"))
        return self._match(w, i, a._replace(claims=(*a.claims, a.write)))

    # --- an attempt: publishes --------------------------------------------------------------------------------

    def _publish(self, w: World, i: int, a: Actor) -> Next:
        if all(r.state == "settled" for r in a.rows):
            yield f"task {i} is done", self._release(w, i, a, "done")
            return
        yield from self._keep(w, i, a)
        yield from self._probe(w, i, a, _doubtful(a))
        if not w.runs[a.server] or any(c.task == i and c.at_sender for c in w.copies):
            for s, runs in enumerate(w.runs):
                if s != a.server and runs:
                    copies = tuple(c for c in w.copies if c.task != i or not c.at_sender)
                    yield f"task {i} goes on over server {s}", _with(w._replace(copies=copies), i, server=s)
        assert a.task is not None
        named = str(a.server) in a.task.servers
        if not named:
            if self._key(i) in a.changed:
                yield f"task {i} is superseded", self._failed(w, i)
            else:
                task = replace(a.task, servers=_names(_doubtful(a) | {a.server}))
                then = _with(_write(w, i, self._key(i), task), i, task=task)
                yield f"task {i} names servers {', '.join(task.servers)}", then
        if named or "named too late" in self.faults:
            yield from self._send(w, i, a)
        doubt = [n for n, r in enumerate(a.rows) if r.state == "sent" and self._fenced(a, {r.server})]
        doubt = [n for n in doubt if a.rows[n].age or not self._counts]
        if doubt:
            then = w
            for n in doubt:
                found = a.rows[n].id in w.stored[a.since :]
                then = _row(then, i, n, state="settled" if found else "new", age=0)
            yield f"task {i} looks for rows {doubt}", then

    def _send(self, w: World, i: int, a: Actor) -> Next:
        may = self._may_send(a)
        if "stands still before a send" in self.faults:
            if may and not a.write:
                yield f"task {i} looks at its lease", _with(w, i, write="send")
            may = bool(a.write)
        n = next((n for n, r in enumerate(a.rows) if r.state == "new" and r.sends < 2), None)
        which = [] if n is None else [n]
        if "ids are trusted" in self.faults:
            which += [n for n, r in enumerate(a.rows) if r.state == "sent" and r.age == 0 and r.sends < 2]
        for n in which if may else ():
            r = a.rows[n]
            probes = (*a.probes[: a.server], None, *a.probes[a.server + 1 :])
            sent = _row(w, i, n, state="sent", server=a.server, sends=r.sends + 1)
            sent = _with(sent, i, probes=probes, write=None)
            for slow in (False, True)[: 1 + bool(w.slow)]:
                copy = Copy(i, n, r.id, a.server, slow)  # type: ignore[arg-type]
                where = "and it stays in its buffer" if slow else f"to server {a.server}"
                then = sent._replace(copies=tuple(sorted((*w.copies, copy), key=_lane)), slow=w.slow - slow)
                yield f"task {i} sends row {n} as {_text(r.id)} {where}", then

    def _keep(self, w: World, i: int, a: Actor) -> Next:
        me, key = self._me[i], self._key(i)
        if not a.age:
            return
        if a.renewing is None and self._runs == 1:
            a = a._replace(renewing=0)  # nobody changes the batch marker
        if a.renewing is None:
            lost = _get(w, "batch").run != me.run
            then = self._failed(w, i) if lost else _with(w, i, renewing=0)
            yield f"task {i} looks at the batch marker to renew its lease", then
        elif key not in a.changed:
            then = _write(w, i, key, a.task)
            yield f"task {i} renews its lease", _with(then, i, age=a.renewing, renewing=None)
            if w.lost:
                then = then._replace(lost=w.lost - 1)
                lost_answer = _with(then, i, renewing=None, changed=a.changed | {key})
                yield f"task {i} renews its lease, the answer is lost", lost_answer
        elif _get(w, key).owner == me.owner:
            age = a.renewing if "renewed without a change" in self.faults else a.age
            then = _with(w, i, age=age, renewing=None, changed=a.changed - {key})
            yield f"task {i} finds its lease renewed", then
        else:
            yield f"task {i} is superseded", self._failed(w, i)

    def _may_send(self, a: Actor) -> bool:
        return a.age < self._margin * LEASE

    def _holds(self, a: Actor) -> bool:
        """What is in the buffer of the attempt's socket stays there."""
        return (a.at not in ENDED and self._may_send(a)) or (a.at == "crashed" and "sent after the end" in self.faults)

    def _probe(self, w: World, i: int, a: Actor, servers: Iterable[int]) -> Next:
        for s in sorted(servers):
            mine = any(c.task == i and c.server == s and c.at_sender for c in w.copies)
            if a.probes[s] is None and w.runs[s] and not mine:
                seen = SETTLE if "no settling" in self.faults else 0
                probes = (*a.probes[:s], seen, *a.probes[s + 1 :])
                yield f"task {i} sees that server {s} is alive", _with(w, i, probes=probes)

    def _fenced(self, a: Actor, servers: Any) -> bool:
        return "no fence" in self.faults or all((a.probes[int(s)] or 0) >= SETTLE for s in servers)

    def tidy(self, w: World, before: World) -> World:
        """Without differences that make none; it follows one that is tidy."""
        forgotten = w.forgotten if "ids are trusted" in self.faults else len(w.stored)
        actors = tuple(
            a if a is old else self._tidy(i, a) for i, (a, old) in enumerate(zip(w.actors, before.actors, strict=True))
        )
        return w._replace(actors=actors, forgotten=forgotten)

    def _tidy(self, i: int, a: Actor) -> Actor:
        if a.at in ENDED or not (a.changed or any(p is not None for p in a.probes)):
            return a
        doubtful = _doubtful(a) if a.at == "publish" else set(map(int, a.need or ()))
        probes = tuple(p if s in doubtful else None for s, p in enumerate(a.probes))
        watched = (self._key(i), *_WATCHED.get(a.at, ()))
        return a._replace(probes=probes, changed=frozenset(k for k in a.changed if k.startswith(watched)))

    # --- what must be true ------------------------------------------------------------------------------------

    def wrong(self, w: World, before: World) -> str | None:
        """Of one that follows one that is right."""
        if w.stored == before.stored and all(a.rows == b.rows for a, b in zip(w.actors, before.actors, strict=True)):
            return None  # it depends on these alone
        stored = Counter(one.content for one in w.stored)
        if any(stored[c] > n for c, n in self.rows.items()):
            return "doubled"
        for run in {task.run for task in self.scope.tasks}:
            settled: dict[int, Counter[str]] = {}
            for task, a in zip(self.scope.tasks, w.actors, strict=True):
                if task.run == run:
                    mine = Counter(c for c, r in zip(task.rows, a.rows, strict=False) if r.state == "settled")
                    settled[task.partition] = settled.get(task.partition, Counter()) | mine
            if any(n > stored[c] for c, n in sum(settled.values(), Counter()).items()):
                return "lost"
        return None


class Result(NamedTuple):
    """:ivar wrong: what was found, and ``trace``: the shortest way to it"""

    states: int
    done: int
    wrong: str | None = None
    trace: Sequence[str] = ()


def explore(scope: ModelScope, most: int = 10_000_000) -> Result:
    """All states of the scope, or those on the way to the first that is wrong."""
    model = Model(scope)
    start = model.first()
    came: dict[int, tuple[int, str]] = {hash(start): (0, "")}
    level, done = [(hash(start), start)], 0
    while level:
        after = []
        for from_, w in level:
            for label, then in model.next(w):
                then = model.tidy(then, w)
                key = hash(then)
                if key in came:
                    continue
                came[key] = (from_, label)
                done += any(a.at == "done" for a in then.actors)
                if wrong := model.wrong(then, w):
                    return Result(len(came), done, wrong, _trace(came, key))
                after.append((key, then))
        level = after
        if len(came) > most:
            raise AssertionError(f"more than {most:,} states")
    return Result(len(came), done)


def _trace(came: dict[int, tuple[int, str]], key: int) -> list[str]:
    steps: list[str] = []
    while came[key][1]:
        key, label = came[key]
        steps.insert(0, label)
    return steps


# --- the product's decisions ----------------------------------------------------------------------------------


@lru_cache(None)
def _batch_step(
    me: Attempt, lease: int, found: BatchMarker | None, waited: int | None, last: int, end: int
) -> tuple[Any, int]:
    turn = BatchTurn(me, lease, Bounds(1, last, ""), lambda: end)
    marker = Marker(int(found is not None), b"" if found is None else protocol.encode(found))
    try:
        if waited:
            turn.step(marker, -float(waited))
        return turn.step(marker, 0.0), turn.last
    except Superseded:
        return "superseded", last


@lru_cache(None)
def _task_step(
    me: Attempt, found: TaskMarker | None, waited: int | None, after: int, server: str
) -> tuple[Any, bool, tuple[str, ...]]:
    turn = TaskTurn(me, LEASE, after, 0.0, (server,))
    marker = Marker(int(found is not None), b"" if found is None else protocol.encode(found))
    if waited:
        turn.step(marker, -float(waited))
    return turn.step(marker, 0.0), turn.repeated, turn.before


@lru_cache(None)
def _matched(
    partition: int,
    rows: str,
    own: tuple[tuple[int, Id], ...] | None,
    earlier: tuple[tuple[int, Id], ...] | None,
    log: tuple[tuple[tuple[tuple[str, int], ...], bool], ...],
) -> tuple[tuple[Row, ...], tuple[tuple[str, int], ...]]:
    """The rows of an attempt after it has read back; or what it claims next."""
    matching, claims = Matching(partition, shared=True), iter(log)
    matching.streams[STREAM] = StreamTables(*(None if found is None else _table(found) for found in (own, earlier)))

    def claim(_stream: str, table: FoundRows, part: Distinct) -> None:
        said = next(claims, None)
        if said is None:
            raise _WantedError(part)
        contents, mine = said
        counts = np.array([n for _, n in contents])
        table.claim(Distinct(keys_of(_digests("".join(c for c, _ in contents))), counts), mine=mine)

    every = [(STREAM, np.arange(len(rows)))]
    digests = _digests(rows)
    try:
        found, _ = matching.rows(every, digests, claim)
    except _WantedError as e:
        (part,) = e.args
        names = {int(keys_of(_digests(c)).high[0]): c for c in rows}
        pairs = zip(part.keys.high.tolist(), part.counts.tolist(), strict=True)
        return (), tuple(sorted((names[key], n) for key, n in pairs))
    left = [n for n in range(len(rows)) if found.sequence[n] < 0]
    before = np.array([sum(rows[m] == rows[n] for m in left if m < n) for n in range(len(rows))], np.int64)
    numbers = matching.free_numbers([(STREAM, np.array(left, np.int64))], digests, before)
    return tuple(
        Row(Id(partition, c, int(numbers[n]))) if n in left else Row(None, "settled") for n, c in enumerate(rows)
    ), ()


class _WantedError(Exception):
    pass


def _digests(contents: str) -> Digests:
    return np.frombuffer(b"".join(xxh3_128_digest(c.encode()) for c in contents), np.uint8).reshape(-1, 16)


def _table(found: tuple[tuple[int, Id], ...]) -> StoredRows:
    table = StoredRows(0, len(PREFIX))
    if found:
        sequences, ids = zip(*found, strict=True)
        partitions, contents, numbers = zip(*ids, strict=True)
        columns = (np.array(column, np.int64) for column in (sequences, partitions, numbers))
        table.rows.add(keys_of(_digests("".join(contents))), *columns)
    table.finish()
    return table


# --- worlds ---------------------------------------------------------------------------------------------------


def _get(w: World, key: str) -> Any:
    return next((value for k, value in w.markers if k == key), None)


def _write(w: World, by: int, key: str, value: Any) -> World:
    markers = tuple(sorted([*(m for m in w.markers if m[0] != key), (key, value)], key=lambda m: m[0]))
    actors = tuple(
        a if n == by or a.at in ENDED or key in a.changed else a._replace(changed=a.changed | {key})
        for n, a in enumerate(w.actors)
    )
    return w._replace(markers=markers, actors=actors)


def _set(w: World, i: int, a: Actor) -> World:
    return w._replace(actors=(*w.actors[:i], a, *w.actors[i + 1 :]))


def _with(w: World, i: int, **changes: Any) -> World:
    return _set(w, i, w.actors[i]._replace(**changes))


def _doubtful(a: Actor) -> frozenset[int]:
    """Servers that have messages of which nobody knows whether they will be stored."""
    return frozenset(r.server for r in a.rows if r.state == "sent")


def _names(servers: Iterable[int]) -> tuple[str, ...]:
    return tuple(sorted(map(str, servers)))


def _over(at: str, rows: tuple[Row, ...] = ()) -> Actor:
    """An attempt that has ended."""
    return Actor(at, rows=rows)


def _row(w: World, i: int, n: int, **changes: Any) -> World:
    rows = w.actors[i].rows
    return _with(w, i, rows=(*rows[:n], rows[n]._replace(**changes), *rows[n + 1 :]))


def _read(w: World, after: int, up_to: int, partition: int | None) -> tuple[tuple[int, Id], ...]:
    found = ((n + 1, one) for n, one in enumerate(w.stored) if after <= n < up_to)
    return tuple((n, one) for n, one in found if partition in (None, one.partition))


def _lane(copy: Copy) -> tuple[int, int]:
    """Messages of one task to one server overtake one another nowhere."""
    return copy.task, copy.server


def _text(one: Id | None) -> str:
    return "" if one is None else f"{one.partition}-{one.content}-{one.number}"


def _words(value: BatchMarker) -> str:
    return f"the batch marker of {value.run}{'' if value.open else ', not open'}"

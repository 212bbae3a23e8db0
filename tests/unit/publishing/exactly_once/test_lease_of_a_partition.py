"""The lease of a partition: taken, renewed while its attempt is open, released at its end; and the servers it names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.batch_ledger import Marker, MarkerChanged, StoredIds
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds
from mama_spark.publishing.exactly_once import protocol
from mama_spark.publishing.exactly_once.partition_leases import lease_clock
from mama_spark.publishing.exactly_once.protocol import Attempt, BatchMarker, Superseded, TaskMarker
from mama_spark.publishing.exactly_once.session import BatchSession, Rules
from mama_spark.testing.waiting import eventually

ME = Attempt("query", 7, "run", 3, "me", "query-7-", "one message a row")
KEY = ME.key("S", "task", ME.partition)


class Markers:
    """A ledger of one stream that takes all topics.

    :ivar last: sequence of the stream
    :ivar why: what is said of each server, until nothing is left
    :ivar on_marker: called before a marker is read
    """

    def __init__(self) -> None:
        self.kept: dict[str, Marker] = {}
        self.last = 0
        self.why: dict[str, list[str]] = {}
        self.on_marker: Callable[[str], None] = lambda key: None
        self.reads: list[tuple[int, int]] = []

    def open(self) -> None:
        pass

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        return ["S"] * len(topics)

    def marker(self, key: str) -> Marker:
        self.on_marker(key)
        return self.kept.get(key, Marker(0, b""))

    def markers_and_bounds(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        return [self.kept.get(key, Marker(0, b"")) for key in keys], self.bounds(stream)

    def markers_below(self, key: str) -> list[Marker]:
        return [marker for name, marker in self.kept.items() if name.startswith(key)]

    def why_unfenced(self, stream: str, server: str) -> str:
        left = self.why.get(server, [])
        return left.pop(0) if len(left) > 1 else "".join(left)

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        if self.kept.get(key, Marker(0, b"")).revision != revision:
            raise MarkerChanged("another revision")
        self.kept[key] = Marker(revision + 1, value)
        return revision + 1

    def put(self, key: str, marker: protocol.BatchMarker | protocol.TaskMarker) -> None:
        self.kept[key] = Marker(self.kept.get(key, Marker(0, b"")).revision + 1, protocol.encode(marker))

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        self.set_marker(key, value, revision)

    def bounds(self, stream: str) -> Bounds:
        return Bounds(1, self.last, "2026")

    def decided_last(self, stream: str, patience: float | None = None) -> int:
        return self.last

    def read(self, stream: str, after: int, up_to: int, prefix: bytes, *, records: bool = False) -> Iterator[StoredIds]:
        self.reads.append((after, up_to))
        yield StoredIds(np.array([after + 1]), [b"query-7-3-a"], None, 1)

    def missing(self, stream: str, after: int, up_to: int) -> list[tuple[int, int]]:
        return []

    def close(self) -> None:
        pass

    @property
    def task(self) -> TaskMarker:
        found = protocol.task_marker(self.kept[KEY].value)
        assert found is not None
        return found

    @property
    def servers(self) -> list[str]:
        """That the marker names."""
        return list(self.task.servers)


@pytest.fixture
def markers() -> Markers:
    return Markers()


SHORT = Rules(lease=0.05)


def session_of(
    markers: Markers, rules: Rules = SHORT, servers: Sequence[str] = (), clock: Callable[[], float] = lease_clock
) -> BatchSession:
    """:param servers: that the bridge has sent to"""
    session = BatchSession(markers, ME, rules, lambda: tuple(servers), clock)
    session.open()
    return session


def test_an_attempt_renews_its_marker_while_it_is_open_and_releases_it_at_the_end(markers: Markers) -> None:
    with closing(session_of(markers)) as session:
        session.begin(pa.array(["t"]))
        first = markers.task
        assert (first.owner, first.released) == ("me", False)
        eventually(lambda: markers.task.renewed > first.renewed, "the lease is renewed")
    assert markers.task.released
    assert markers.task.owner == "me"


def test_a_version_of_the_user_that_does_not_rise_is_refused_with_the_rule(markers: Markers) -> None:
    with closing(session_of(markers)) as session:
        session.begin(pa.array(["t"]))
    me = replace(ME, batch=6, run="again", numbered_by_user=True)
    with closing(BatchSession(markers, me, SHORT, tuple)) as session:
        session.open()
        with pytest.raises(ConfigError, match=r"batch 6 is older than batch 7, .*\(txnVersion must rise: 6 < 7\)"):
            session.begin(pa.array(["t"]))


@pytest.mark.parametrize("fails", [False, True])
def test_a_renewal_that_took_longer_than_the_lease_is_repeated_at_once(
    markers: Markers, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """As while the markers have no leader."""
    now, slow, servers, store = [0.0], [700.0], ["a"], markers.set_marker

    def stored_late(key: str, value: bytes, revision: int) -> int:
        if slow:
            now[0] += slow.pop()
            if fails:
                servers.remove("b")  # nothing else lets it be renewed
                raise Unavailable("no answer")
        return store(key, value, revision)

    with closing(session_of(markers, Rules(lease=600.0), servers, lambda: now[0])) as session:
        session.begin(pa.array(["t"]))
        monkeypatch.setattr(markers, "set_marker", stored_late)
        servers.append("b")  # so that it is renewed now
        eventually(session.may_send, "it is renewed again, long before it would be", timeout=10.0)
        assert not slow


def test_a_stream_without_a_leader_does_not_end_the_lease(markers: Markers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor keep the next attempt waiting; the ledger is given back when nobody asks it any more."""
    over, asked, did = threading.Event(), threading.Event(), list[str]()

    def bounds(stream: str) -> Bounds:
        asked.set()
        over.wait()
        did.append("answered")
        return Bounds(1, 0, "2026")

    session = session_of(markers)
    session.begin(pa.array(["t"]))
    monkeypatch.setattr(markers, "bounds", bounds)
    monkeypatch.setattr(markers, "close", lambda: did.append("closed"))
    before = markers.task.renewed
    eventually(lambda: asked.is_set() and markers.task.renewed > before + 10, "it is renewed")
    ending = threading.Thread(target=session.close, daemon=True)
    ending.start()
    eventually(lambda: markers.task.released, "whoever comes next need not wait")
    over.set()
    ending.join()
    assert did == ["answered", "closed"]


@pytest.mark.parametrize("answered", [True, False])
def test_nothing_is_sent_to_a_server_before_the_marker_names_it(markers: Markers, *, answered: bool) -> None:
    servers = ["a"]
    with closing(session_of(markers, Rules(lease=600.0), servers)) as session:
        session.begin(pa.array(["t"]))
        assert markers.servers == ["a"]
        assert session.may_send()
        servers.append("b")
        assert not session.may_send()
        eventually(session.may_send, "the marker is stored, long before it would be renewed")
        assert markers.servers == ["a", "b"]
        del servers[0]
        assert session.may_send()
        if answered:
            session.all_answered()
    assert markers.servers == ([] if answered else ["a", "b"])


OTHER = TaskMarker(7, "run", "other", 0, released=True, servers=("a", "b"))
BATCH = BatchMarker(7, ("run",), "query-7-", "one message a row", "2026", 0)


@pytest.mark.parametrize(
    ("own", "found", "patience", "publish", "says"),
    [
        ("run", OTHER, 60.0, False, None),
        ("run", OTHER, 0.0, False, "a is silent. A repetition waits again; if the server is gone for good"),
        ("run", OTHER, 0.0, True, "a is silent; publishing the rows not found"),
        ("later", replace(OTHER, released=False), 60.0, False, None),  # another run waits a lease, and opens the batch
        ("later", replace(OTHER, released=False), 0.0, False, "a is silent. A repetition waits again"),
    ],
)
def test_who_takes_over_waits_for_the_servers_that_the_marker_names(
    markers: Markers, caplog: pytest.LogCaptureFixture, own: str, found: TaskMarker, patience: float,
    publish: bool, says: str | None,
) -> None:  # fmt: skip
    markers.put(ME.key("S", "batch"), BATCH)
    markers.put(KEY, found)
    markers.why = {"a": ["a is silent"] * (3 if says is None else 1) + ([""] if says is None else []), "b": [""]}
    rules = Rules(0.05, patience=patience, publish_unfenced=publish)
    session = BatchSession(markers, replace(ME, run=own), rules, lambda: ("c",))
    with closing(session):
        if says is not None and not publish:
            with pytest.raises(Unavailable, match=says):
                session.begin(pa.array(["t"]))
            return
        session.begin(pa.array(["t"]))
        assert session.unfenced is publish
        assert says is None or says in caplog.text
        assert markers.why == {"a": [(says and "a is silent") or ""], "b": [""]}


def test_an_attempt_that_stood_still_does_not_take_the_marker_of_a_later_run(markers: Markers) -> None:
    """It finds that the marker has changed, and looks whose the batch is before it writes again."""
    markers.put(ME.key("S", "batch"), BATCH)
    markers.put(KEY, replace(OTHER, released=False, servers=()))
    theirs = replace(OTHER, run="later", servers=())

    def another_run_comes(key: str) -> None:
        markers.on_marker = lambda key: None
        markers.put(ME.key("S", "batch"), replace(BATCH, runs=("run", "later")))
        markers.put(KEY, theirs)

    markers.on_marker = another_run_comes
    with closing(session_of(markers)) as session, pytest.raises(Superseded):
        session.begin(pa.array(["t"]))
    assert markers.task == theirs


def test_a_lease_counts_from_the_moment_at_which_the_batch_was_certainly_of_this_run(
    markers: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt stands still between its look at the marker of the batch and its own marker."""
    markers.put(ME.key("S", "batch"), BATCH)
    now, answer = [0.0], markers.markers_and_bounds

    def stand_still(stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        now[0] = 1000.0
        return answer(stream, keys)

    def not_renewed(key: str) -> None:
        raise Unavailable("not renewed")

    monkeypatch.setattr(markers, "markers_and_bounds", stand_still)
    markers.on_marker = not_renewed
    with closing(session_of(markers, Rules(lease=600.0), clock=lambda: now[0])) as session:
        session.begin(pa.array(["t"]))
        assert not session.may_send()


def test_a_look_reads_what_came_since_the_messages_were_sent(markers: Markers) -> None:
    messages = MessageBatch.of(["t"] * 2, [b"1", b"2"], ids=["query-7-3-a", "query-7-3-b"])
    with closing(session_of(markers, Rules(lease=600.0))) as session:
        session.begin(pa.array(["t"]))
        sent, markers.last = time.monotonic(), 10
        [found] = session.stored([messages], sent)
        assert [(some.stream, some.rows.tolist(), some.sequences.tolist()) for some in found] == [("S", [0], [1])]
        looked, markers.last = time.monotonic(), 20
        session.stored([messages], looked)
        assert markers.reads == [(0, 10), (10, 20)]
        session.stored([messages], sent)
        assert markers.reads.pop() == (0, 20), "it may have been stored while the first look asked for the end"

"""What readers of discovery are told of streams that expire, lag and go back: simulated streams, of which the leader
stores, and a replica answers direct gets."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.nats.discovery import consumer_advisories as adv
from mama_spark.nats.discovery.layout import DiscoveryLayout
from mama_spark.nats.discovery.reader import DiscoveryReader
from mama_spark.nats.jetstream import client
from mama_spark.nats.protocol.direct_get import StoredMessage
from mama_spark.nats.subjects import NO_READERS

from tests.simulation.jetstream_api import JetStream
from tests.simulation.jetstream_rules import API, Stored, Stream, matches, text_of

KEPT = 100.0
LAYOUT = DiscoveryLayout(kept=KEPT)
EVENTS, ADVISORIES = LAYOUT.events, LAYOUT.advisories or ""
DESK = SourceKey("desk", 7)
EVENT, GAP, GONE = DiscoveryEventKind.EVENT, DiscoveryEventKind.GAP, DiscoveryEventKind.UNSUBSCRIBED
IMAGE_END = DiscoveryEventKind.IMAGE_END


class Streams(client.JetStream):
    """:ivar now: time of the server, seconds since the epoch; readers have another clock
    :ivar stale: older states of a stream, from which the replica answers first
    :ivar ahead: seconds by which the clock of a stream's leader is ahead of the others, for what is asked about it
    """

    def __init__(self) -> None:
        self.now, self.rules = 1e9, JetStream()
        self.stale: dict[str, list[Stream]] = {}
        self.ahead: dict[str, float] = {}
        link = SimpleNamespace(info=SimpleNamespace(max_payload=1 << 20), up=True, closed=False, drive=lambda *_: None)
        super().__init__(lambda: link, 5.0)  # type: ignore[arg-type,return-value]
        for config in LAYOUT.streams():
            self.rules.create(now=self.now, **config)

    def __getitem__(self, name: str) -> Stream:
        return self.rules.streams[name]

    # --- what happens to them ----------------------------------------------------------------------------------------

    def store(self, subject: str, payload: bytes = b"") -> int:
        stream = self.rules.owner(subject)
        return (stream or self[EVENTS]).store(subject, {}, payload, self.now)

    def tell(self, payload: bytes) -> int:
        return self.store(LAYOUT.event_subject(DESK), payload)

    def renew(self) -> None:
        self[EVENTS].store(LAYOUT.source_subject(DESK, "live"), {}, b"", self.now)

    def leave(self, consumer: str) -> int:
        return self.store(f"{adv.DELETED}S.{consumer}")

    def pass_time(self, seconds: float, advisories_kept: float = KEPT) -> None:
        self.now += seconds
        for stream, age in ((self[EVENTS], KEPT), (self[ADVISORIES], advisories_kept)):
            kept = (n for n, message in stream.messages.items() if message.time > self.now - age)
            stream.purge(next(kept, stream.last + 1))

    def state(self, name: str) -> Stream:
        """The stream as it is now."""
        found = copy.copy(self[name])
        found.messages, found.newest = dict(found.messages), dict(found.newest)
        return found

    # --- what they answer --------------------------------------------------------------------------------------------

    def _replica(self, name: str) -> Stream:
        return self.stale[name].pop() if self.stale.get(name) else self[name]

    def get(self, stream: str, timeout: float | None = None, **which: str | int) -> StoredMessage | None:
        found = self._replica(stream).find(which)
        return None if found is None else message_of(found)

    def get_many(self, stream: str, **body: Any) -> tuple[list[StoredMessage], int]:
        held = list(map(message_of, self._replica(stream).messages.values()))
        if (last := body.get("multi_last")) is not None:
            return [m for m in held if m.subject in last and m.sequence <= body["up_to_seq"]][-1:], 0
        found = [m for m in held if m.sequence >= body["seq"] and matches(body["next_by_subj"], m.subject)]
        return found[: body["batch"]], len(found[body["batch"] :])

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        stream = self.rules.owner(subject)
        assert stream is not None
        return stream.store(subject, headers, payload, self.now)

    def _request_group(
        self,
        calls: Sequence[tuple[str, dict[str, Any] | None]],
        timeout: float | None = None,
        final: Collection[int] = (),
    ) -> list[dict[str, Any] | MamaError]:
        found: list[dict[str, Any] | MamaError] = []
        for call, body in calls:
            answer: Any
            now = self.now + self.ahead.get(call.rpartition(".")[2], 0.0)
            (answer,) = self.rules.request(f"{API}{call}", "", b"" if body is None else orjson.dumps(body), now)
            self.store(adv.AUDITS)
            try:
                found.append(client.read_answer(call, answer, final))
            except MamaError as e:
                found.append(e)
        return found


def message_of(found: Stored) -> StoredMessage:
    return StoredMessage(found.sequence, text_of(found.time), found.subject, found.payload, found.headers)


class Query:
    """A query; if it ``restarts``, nothing but the offset is left of its last micro-batch."""

    def __init__(self, streams: Streams, *, restarts: bool = True) -> None:
        self._streams, self._restarts, self._reader = streams, restarts, DiscoveryReader(streams, LAYOUT, 0.0)
        self.at: Position = self._reader.initial_offset("latest")

    def plan(self) -> Position:
        if self._restarts:
            self._reader = DiscoveryReader(self._streams, LAYOUT, 0.0)
        return dict(json.loads(json.dumps(self._reader.latest_offset(self.at, None, None))))

    def read(self, end: Position) -> list[DiscoveryEvent]:
        """In another process."""
        blocks = DiscoveryReader(self._streams, LAYOUT, 0.0).read(self.at, end)
        self.at = end
        return [event for block in blocks for event in block]

    def run(self) -> list[DiscoveryEvent]:
        return self.read(self.plan())


@pytest.fixture
def streams() -> Streams:
    return Streams()


def test_renewals_that_expire_between_runs_are_no_gap(streams: Streams) -> None:
    query = Query(streams)
    for _ in range(6):
        streams.renew()
        streams.pass_time(KEPT / 4)
        assert query.run() == []
    told = streams.tell(b"new")
    assert [(event.kind, event.sequence) for event in query.run()] == [(EVENT, told)]


def test_what_expired_while_no_query_ran_is_a_gap_with_its_numbers(streams: Streams) -> None:
    query = Query(streams)
    begun = query.at["events"]
    streams.tell(b"lost")
    streams.pass_time(2 * KEPT)
    told = streams.tell(b"new")
    assert [(event.gap, event.sequence) for event in query.run() if event.origin == EVENTS] == [
        ((begun + 1, told - 1), None),
        (None, told),
    ]


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "with events"])
@pytest.mark.parametrize("pause", [1.0, KEPT / 4])
def test_advisories_that_tell_nothing_and_expire_are_no_gap(streams: Streams, pause: float, busy: bool) -> None:
    query = Query(streams)
    for _ in range(int(1.5 * KEPT / pause)):
        streams.store(adv.AUDITS)
        told = [streams.tell(b"e")] if busy else []
        streams.pass_time(pause)
        assert [event.sequence for event in query.run()] == told
    gone = streams.leave("c")
    assert [(event.kind, event.sequence) for event in query.run()] == [(GONE, gone)]


def test_advisories_that_are_kept_for_a_short_time_are_no_gap(streams: Streams) -> None:
    query = Query(streams)
    for _ in range(100):
        for _ in range(10):
            streams.store(adv.AUDITS)
        streams.pass_time(KEPT / 500, advisories_kept=KEPT / 10)
        assert query.run() == []
    gone = streams.leave("c")
    assert [(event.kind, event.sequence) for event in query.run()] == [(GONE, gone)]


def test_advisories_that_expired_while_no_query_ran_are_a_gap_with_its_numbers(streams: Streams) -> None:
    query = Query(streams)
    begun = query.at["advisories"]
    streams.leave("lost")
    streams.pass_time(2 * KEPT)
    first = streams.store(adv.AUDITS)
    assert [event.gap for event in query.run() if event.origin == ADVISORIES] == [(begun + 1, first - 1)]
    gone = streams.leave("kept")
    assert [event.sequence for event in query.run()] == [gone]


def test_what_a_replica_lacks_is_awaited_where_nothing_is_told_at_the_end(streams: Streams) -> None:
    query = Query(streams)
    streams.pass_time(KEPT / 4)
    before = streams.state(ADVISORIES)
    gone = streams.leave("c")
    streams.store(adv.AUDITS)
    end = query.plan()
    assert end["advisories"] > gone
    streams.stale[ADVISORIES] = [before, before]
    assert [event.sequence for event in query.read(end)] == [gone]


@pytest.mark.parametrize("grown", [0, 1, 20])
@pytest.mark.parametrize("advisories", ["old", "new"])
@pytest.mark.parametrize("restarts", [True, False], ids=["runs", "one run"])
def test_a_stream_that_was_restored_from_an_older_copy_is_a_gap_and_an_image(
    streams: Streams, restarts: bool, advisories: str, grown: int
) -> None:
    query = Query(streams, restarts=restarts)
    streams.tell(b"kept")
    query.run()
    copies = {name: streams.state(name) for name in (EVENTS, ADVISORIES)}
    for n in range(9):
        streams.tell(b"%d" % n)
    for n in range(50):
        streams.leave(f"c{n}")
    assert [event.kind for event in query.run()].count(EVENT) == 9
    if advisories == "new":
        copies[ADVISORIES] = streams.state(ADVISORIES)
    for n in range(50):
        streams.leave(f"{NO_READERS[0]}{n}")
    assert query.run() == []
    lost_after = query.at["events"]
    streams.rules.streams.update(copies)
    streams.rules._owners.clear()
    streams.now += 1.0
    for n in range(grown):
        streams.tell(b"lost %d" % n)
    assert DiscoveryReader(streams, LAYOUT, 0.0).latest_offset(query.at, None, query.at) == query.at
    told = query.run()
    assert [(event.kind, event.gap) for event in told] == [(GAP, (lost_after + 1,) * 2), (IMAGE_END, None)]
    for _ in range(2):
        new = [(EVENT, streams.tell(b"new")), (GONE, streams.leave("new"))]
        assert [(event.kind, event.sequence) for event in query.run()] == new


def test_a_replica_that_lacks_the_mark_moves_nothing(streams: Streams) -> None:
    before = streams.state(EVENTS)
    query = Query(streams)
    streams.stale[EVENTS] = [before]
    assert query.plan() == query.at


def test_a_leader_that_lacks_the_mark_that_was_just_stored_is_asked_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(streams)
    leader, message, lag = streams.state(EVENTS), Streams.message, [1]
    told = streams.tell(b"new")

    def lagging(api: Streams, stream: str, **which: Any) -> StoredMessage | None:
        return message_of(leader.find(which)) if lag and lag.pop() else message(api, stream, **which)  # type: ignore[arg-type]

    monkeypatch.setattr(Streams, "message", lagging)
    assert [(event.kind, event.sequence) for event in query.run()] == [(EVENT, told)]
    streams.timeout, lag[:] = 0.0, [1]
    streams.tell(b"newer")
    with pytest.raises(Unavailable, match="its leader has changed"):
        query.plan()


def test_readers_that_push_out_the_marks_of_each_other_do_not_move(streams: Streams) -> None:
    streams[EVENTS].config["max_msgs_per_subject"] = 1
    streams.store(LAYOUT.event_subject(SourceKey("other", 1)))  # stays the first
    queries = [Query(streams), Query(streams)]
    for _ in range(2):
        assert [query.plan() for query in queries] == [query.at for query in queries]
        streams.pass_time(KEPT / 4)
        assert [query.run() for query in queries] == [[], []]  # one micro-batch, in which they have a new mark
    told = streams.tell(b"new")
    assert [[event.sequence for event in query.run()] for query in queries] == [[told], [told]]


def test_a_beginning_that_was_removed_is_a_gap_also_where_a_replica_still_has_it(streams: Streams) -> None:
    query = Query(streams)
    for n in range(3):
        streams.tell(b"%d" % n)
    before = streams.state(EVENTS)
    streams.pass_time(2 * KEPT)
    told = streams.tell(b"new")
    query.at = DiscoveryReader(streams, LAYOUT, 0.0).initial_offset(((EVENTS, 2),))
    streams.stale[EVENTS] = [before]
    assert [(event.kind, event.gap, event.sequence) for event in query.run() if event.origin != ADVISORIES] == [
        (GAP, (2, told - 1), None),
        (EVENT, None, told),
    ]


def test_a_mark_has_the_age_of_the_server_that_stored_it(streams: Streams) -> None:
    streams.ahead[ADVISORIES] = 10 * KEPT
    query = Query(streams)
    assert query.plan() == query.at
    streams.pass_time(KEPT / 4)
    assert query.plan() != query.at


def test_an_image_begins_with_the_advisories_of_the_leader(streams: Streams) -> None:
    query = Query(streams)
    streams.tell(b"kept")
    copied, behind = streams.state(EVENTS), streams.state(ADVISORIES)
    streams.tell(b"lost")
    streams.leave("c")
    assert [event.kind for event in query.run()] == [EVENT, EVENT, GONE]
    streams.rules.streams[EVENTS] = copied
    streams.rules._owners.clear()
    streams.stale[ADVISORIES] = [behind] * 3
    assert [event.kind for event in query.run()] == [GAP, IMAGE_END]
    streams.stale.clear()
    assert query.run() == []


def test_a_stream_of_advisories_that_was_made_again_is_read_from_its_first(streams: Streams) -> None:
    query = Query(streams)
    for n in range(50):
        streams.leave(f"c{n}")
    assert [event.kind for event in query.run()] == [GONE] * 50
    lost_after = query.at["advisories"]
    streams.now += 1.0
    streams.rules.create(now=streams.now, **LAYOUT.streams()[-1])
    for consumer in ("first", "next"):
        gone = streams.leave(consumer)
        assert gone < lost_after
        assert [event.sequence for event in query.run() if event.gap is None] == [gone]

"""Tests that every discovery bridge must pass. Inherit, give a factory and a clock; that is the whole test::

    class TestMemory(DiscoverySuite):
        @pytest.fixture
        def site(self):
            yield DiscoverySetup(make=..., ttl=..., long_ttl=..., die=...)

The bridges that the factory gives are not open; the suite opens and closes them. Payloads are opaque here.

Where the middleware expires no sources, inherit :class:`DiscoveryReadingSuite`. The subclass leaves out tests by
``NAME = None``: without deduplication ``test_events_stand_in_order_and_once``; where no change is ever lost
``test_what_was_lost_before_it_was_read_is_a_gap``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ..contracts.bridge import DiscoveryBridge, DiscoveryEvent, Position, SourceKey
from ..contracts.bridge import DiscoveryEventKind as Kind

TIMEOUT = 60.0  #: seconds for a condition; never reached by a sound bridge
EVER = 600.0  #: seconds that a source lives whose end is of no interest

SOURCE = SourceKey("desk", 7)
OTHER = SourceKey("desk", 8)
PLAIN = SourceKey("Übung .*>", None)  #: no middleware takes such a name as it is


@dataclass
class DiscoverySetup:
    """One place of discovery, fresh for a test.

    :ivar make: a new bridge to it, not open
    :ivar ttl: seconds after which a source that is not renewed is OFFLINE; short where time really passes
    :ivar long_ttl: the same for sources that stay: their renewals may be late by a sixth of it
    :ivar die: end the process of this (open) bridge without a word: nothing is renewed for it any more
    :ivar lose: make the middleware forget the ``n`` oldest changes
    :ivar clock: moves the clock of the middleware by so many seconds; None (default) where time really passes
    :ivar streams: names of the stores of the middleware; None (default) where it has none
    """

    make: Callable[[], DiscoveryBridge]
    ttl: float
    long_ttl: float
    die: Callable[[DiscoveryBridge], None]
    lose: Callable[[int], None]
    clock: Callable[[float], None] | None = None
    streams: Callable[[], list[str]] | None = None

    def let_pass(self, seconds: float) -> None:
        """Let time pass for the middleware."""
        (self.clock or time.sleep)(seconds)

    def expire(self) -> None:
        """Let unrenewed sources expire; real time does it while the changes are read."""
        if self.clock is not None:
            self.clock(1.5 * self.ttl)


def read_events(bridge: DiscoveryBridge, start: Position, end: Position) -> list[DiscoveryEvent]:
    """The events between two positions."""
    return [change for block in bridge.read(start, end) for change in block]


def follow(
    bridge: DiscoveryBridge, start: Position, enough: Callable[[list[DiscoveryEvent]], bool]
) -> list[DiscoveryEvent]:
    """The events after ``start``, until there are ``enough``."""
    found: list[DiscoveryEvent] = []
    end = time.monotonic() + TIMEOUT
    while not enough(found):
        assert time.monotonic() < end, f"only {found}"
        there = bridge.latest_offset(start)
        if there == start:
            time.sleep(0.02)
        found += read_events(bridge, start, there)
        start = there
    return found


def seen(changes: list[DiscoveryEvent]) -> list[tuple[Kind, SourceKey | None, bytes | None]]:
    """Kind, source and payload of each change."""
    return [(c.kind, c.source, c.payload) for c in changes]


def of(kind: Kind, source: SourceKey) -> Callable[[list[DiscoveryEvent]], bool]:
    """A condition: this event is there."""
    return lambda changes: any(c.kind is kind and c.source == source for c in changes)


class DiscoveryReadingSuite:
    """Rules of the image, of offsets, and of what lies between them, one test each, for discovery that others announce,
    or that expires nothing. Bridges of ``site`` announce; ``ttl``, ``long_ttl`` and ``die`` are not used."""

    @pytest.fixture
    def site(self) -> Any:
        raise NotImplementedError("give a fixture `site` that returns or yields a DiscoverySetup")

    @pytest.fixture
    def source(self, site: DiscoverySetup) -> Iterator[DiscoveryBridge]:
        yield from self._opened(site)

    @pytest.fixture
    def reader(self, site: DiscoverySetup) -> Iterator[DiscoveryBridge]:
        yield from self._opened(site)

    def _opened(self, site: DiscoverySetup) -> Iterator[DiscoveryBridge]:
        bridge = site.make()
        bridge.open()
        yield bridge
        bridge.close()

    def test_the_image_is_every_source_and_then_its_end(self, source: DiscoveryBridge,
                                                        reader: DiscoveryBridge) -> None:  # fmt: skip
        assert [c.kind for c in reader.image()] == [Kind.IMAGE_END]
        for key in (SOURCE, OTHER, PLAIN):
            source.announce(key, b"\x00r\xff" + str(key.id).encode(), EVER)
        *sources, end = reader.image()
        assert sorted(seen(sources), key=str) == sorted(
            ((Kind.RECORD, key, b"\x00r\xff" + str(key.id).encode()) for key in (SOURCE, OTHER, PLAIN)), key=str
        )
        assert end.kind is Kind.IMAGE_END
        assert abs(sources[0].at / 1e6 - time.time()) < 86400, "microseconds since the epoch"

    @pytest.mark.parametrize("begin", ["image", "latest", "earliest"])
    def test_reading_creates_nothing_and_misses_nothing_that_comes_later(
        self, site: DiscoverySetup, request: pytest.FixtureRequest, begin: str
    ) -> None:
        before = site.streams() if site.streams else []
        reader: DiscoveryBridge = request.getfixturevalue("reader")  # opens it
        first = reader.initial_offset(begin)
        at = reader.latest_offset(first)
        events = read_events(reader, first, at)
        assert [c.kind for c in events] == [Kind.IMAGE_END][: begin == "image"]
        assert read_events(reader, first, at) == events
        assert read_events(reader, at, reader.latest_offset(at)) == []
        assert [c.kind for c in reader.image()] == [Kind.IMAGE_END]
        assert (site.streams() if site.streams else []) == before
        source = site.make()
        source.open()
        try:
            source.announce(SOURCE, b"r", EVER)
            source.publish_events(SOURCE, [b"e"], ["e"])
            at = json.loads(json.dumps(at))
            found = follow(reader, at, of(Kind.EVENT, SOURCE))
        finally:
            source.close()
        assert seen(found) == [(Kind.RECORD, SOURCE, b"r"), (Kind.EVENT, SOURCE, b"e")]

    def test_a_record_is_written_when_it_changes_and_only_then(
        self, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        start = reader.initial_offset("latest")
        source.announce(SOURCE, b"one", EVER)
        source.announce(SOURCE, b"one", EVER)
        source.announce(SOURCE, b"two", EVER)
        source.announce(OTHER, b"mark", EVER)
        found = follow(reader, start, of(Kind.RECORD, OTHER))
        assert [c.payload for c in found if c.source == SOURCE] == [b"one", b"two"]
        assert [c.payload for c in reader.image() if c.source == SOURCE] == [b"two"]

    def test_events_stand_in_order_and_once(self, source: DiscoveryBridge, reader: DiscoveryBridge) -> None:
        start = reader.initial_offset("latest")
        source.publish_events(SOURCE, [b"\x00", b"1"], ["d-0", "d-1"])
        source.publish_events(SOURCE, [b"1", b"2"], ["d-1", "d-2"])
        source.publish_events(PLAIN, [b"end"], ["p-0"])
        found = follow(reader, start, of(Kind.EVENT, PLAIN))
        assert seen(found) == [
            (Kind.EVENT, SOURCE, b"\x00"),
            (Kind.EVENT, SOURCE, b"1"),
            (Kind.EVENT, SOURCE, b"2"),
            (Kind.EVENT, PLAIN, b"end"),
        ]

    def test_from_the_image_on_nothing_is_missed_and_nothing_comes_twice(
        self, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        source.announce(SOURCE, b"one", EVER)
        begin = reader.initial_offset("image")
        there = reader.latest_offset(begin)
        source.announce(SOURCE, b"two", EVER)
        source.announce(OTHER, b"mark", EVER)
        image = read_events(reader, begin, there)
        assert seen(image) == [(Kind.RECORD, SOURCE, b"one"), (Kind.IMAGE_END, None, None)]
        found = follow(reader, there, of(Kind.RECORD, OTHER))
        assert seen(found) == [(Kind.RECORD, SOURCE, b"two"), (Kind.RECORD, OTHER, b"mark")]

    def test_positions_are_json_and_read_the_same_each_time_by_every_reader(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        source.announce(SOURCE, b"one", EVER)
        begin = reader.initial_offset("image")
        middle = reader.latest_offset(begin)
        source.announce(SOURCE, b"two", EVER)
        source.publish_events(SOURCE, [b"e"], ["e"])
        end = reader.latest_offset(middle)
        until = time.monotonic() + TIMEOUT
        while [c.kind for c in read_events(reader, middle, end)][-1:] != [Kind.EVENT]:
            assert time.monotonic() < until
            end = reader.latest_offset(end)
        first = read_events(reader, begin, middle) + read_events(reader, middle, end)
        source.announce(SOURCE, b"three", EVER)
        begin, middle, end = json.loads(json.dumps([begin, middle, end]))
        other = site.make()
        other.open()
        try:
            assert read_events(other, begin, middle) + read_events(other, middle, end) == first
        finally:
            other.close()
        assert read_events(reader, begin, middle) + read_events(reader, middle, end) == first
        assert read_events(reader, end, end) == []

    def test_a_reader_stops_where_it_planned_to(self, source: DiscoveryBridge, reader: DiscoveryBridge) -> None:
        for i in range(3):
            source.announce(SourceKey(f"s{i}", i), b"r", EVER)
        begin = reader.initial_offset("image")
        plan = reader.latest_offset(begin)
        source.announce(SOURCE, b"later", EVER)
        first = reader.latest_offset(begin, 2, plan)
        rest = reader.latest_offset(first, None, plan)
        assert seen(read_events(reader, begin, first) + read_events(reader, first, rest)) == seen(
            read_events(reader, begin, plan)
        )
        assert read_events(reader, rest, reader.latest_offset(rest, None, plan)) == []
        follow(reader, plan, of(Kind.RECORD, SOURCE))
        later = reader.latest_offset(plan)
        source.announce(OTHER, b"too late", EVER)
        follow(reader, later, of(Kind.RECORD, OTHER))
        assert seen(read_events(reader, plan, reader.latest_offset(plan, None, later))) == [
            (Kind.RECORD, SOURCE, b"later")
        ]

    def test_from_the_earliest_on_all_changes_come_again(
        self, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        source.announce(SOURCE, b"one", EVER)
        source.announce(SOURCE, b"two", EVER)
        source.publish_events(SOURCE, [b"e"], ["e"])
        found = follow(reader, reader.initial_offset("earliest"), of(Kind.EVENT, SOURCE))
        assert {(Kind.RECORD, SOURCE, b"one"), (Kind.RECORD, SOURCE, b"two")} <= set(seen(found))

    def test_a_sequence_of_a_log_is_a_place_to_begin(self, source: DiscoveryBridge, reader: DiscoveryBridge) -> None:
        source.publish_events(SOURCE, [b"0", b"1", b"2"], ["0", "1", "2"])
        found = follow(reader, reader.initial_offset("earliest"), lambda changes: len(changes) == 3)
        assert found[1].sequence is not None
        start = reader.initial_offset(((found[1].origin, found[1].sequence),))
        again = follow(reader, start, lambda changes: len(changes) > 1)
        assert again == found[1:]

    def test_what_was_lost_before_it_was_read_is_a_gap(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        source.publish_events(SOURCE, [b"0", b"1", b"2", b"3"], ["0", "1", "2", "3"])
        all_of_it = follow(reader, reader.initial_offset("earliest"), lambda changes: len(changes) == 4)
        start = reader.initial_offset(((all_of_it[0].origin, all_of_it[0].sequence or 0),))
        site.lose(2)
        found = follow(reader, start, lambda changes: any(c.payload == b"3" for c in changes))
        gap = found[0]
        assert gap.kind is Kind.GAP
        assert gap.gap == (all_of_it[0].sequence, all_of_it[1].sequence)
        assert found[1:] == all_of_it[2:]

    def test_nothing_new_is_no_new_position(self, reader: DiscoveryBridge) -> None:
        at = reader.latest_offset(reader.initial_offset("latest"))
        assert reader.latest_offset(at) == at
        assert read_events(reader, at, at) == []

    def test_close_may_be_repeated_and_follows_a_failed_open(self, site: DiscoverySetup) -> None:
        bridge = site.make()
        bridge.close()
        bridge.open()
        bridge.close()
        bridge.close()


class DiscoverySuite(DiscoveryReadingSuite):
    """Rules of :class:`mama_spark.contracts.bridge.DiscoveryBridge`, one test each."""

    def test_what_is_renewed_by_one_announcer_or_by_one_of_several_stays(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        start = reader.initial_offset("latest")
        other = site.make()
        other.open()
        source.announce(SOURCE, b"r", site.long_ttl)
        for bridge in (source, other):
            bridge.announce(OTHER, b"t", site.long_ttl)
        site.die(other)
        site.let_pass(site.long_ttl * 1.1)
        source.announce(PLAIN, b"mark", site.long_ttl)
        found = follow(reader, start, of(Kind.RECORD, PLAIN))
        assert seen(found) == [(Kind.RECORD, SOURCE, b"r"), (Kind.RECORD, OTHER, b"t"), (Kind.RECORD, PLAIN, b"mark")]

    def test_a_source_that_falls_silent_is_suspect_and_then_offline(
        self, site: DiscoverySetup, reader: DiscoveryBridge
    ) -> None:
        start = reader.initial_offset("latest")
        silent = site.make()
        silent.open()
        silent.announce(SOURCE, b"r", site.ttl)
        site.die(silent)
        site.expire()
        found = follow(reader, start, of(Kind.OFFLINE, SOURCE))
        assert [c.kind for c in found] == [Kind.RECORD, Kind.SUSPECT, Kind.OFFLINE]
        assert {c.source for c in found} == {SOURCE}
        assert found[0].at < found[1].at < found[2].at
        fates = [c.kind for c in reader.image() if c.source == SOURCE]
        assert fates in ([], [Kind.RECORD, Kind.OFFLINE]), "gone, or said to be offline"

    def test_a_source_that_was_gone_says_its_record_again_when_it_is_back(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        start = reader.initial_offset("latest")
        silent = site.make()
        silent.open()
        silent.announce(SOURCE, b"r", site.ttl)
        site.die(silent)
        site.expire()
        follow(reader, start, of(Kind.OFFLINE, SOURCE))
        source.announce(SOURCE, b"r", EVER)
        found = follow(reader, start, lambda changes: [c.kind for c in changes].count(Kind.RECORD) == 2)
        assert seen(found)[-1] == (Kind.RECORD, SOURCE, b"r")
        assert seen(reader.image())[:-1] == [(Kind.RECORD, SOURCE, b"r")]

    def test_a_withdrawn_source_says_so_once_and_does_not_expire(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        start = reader.initial_offset("latest")
        other = site.make()
        other.open()
        for bridge in (source, other):
            bridge.announce(SOURCE, b"on", site.ttl * 1.5)
        source.withdraw(SOURCE, b"off")
        source.withdraw(SOURCE, b"off")
        site.let_pass(site.ttl * 1.7)
        source.announce(OTHER, b"mark", EVER)
        found = follow(reader, start, of(Kind.RECORD, OTHER))
        other.close()
        said = seen([c for c in found if c.source == SOURCE])
        assert (said[0], said[-1]) == ((Kind.RECORD, SOURCE, b"on"), (Kind.RECORD, SOURCE, b"off"))
        assert said.count((Kind.RECORD, SOURCE, b"off")) == 1
        # by the time of the machine, which may stand still, a renewal can be late before, and announce it again
        assert len(said) == 2 or site.clock is None
        assert [c.payload for c in reader.image() if c.source == SOURCE] in ([], [b"off"])

    @pytest.mark.parametrize("who", ["source", "other"])
    def test_a_withdrawn_source_comes_back_when_it_is_announced_again(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge, who: str
    ) -> None:
        other = site.make()
        other.open()
        source.announce(SOURCE, b"on", EVER)
        (source if who == "source" else other).withdraw(SOURCE, b"off")
        source.announce(SOURCE, b"on", EVER)
        other.close()
        assert seen(reader.image())[:-1] == [(Kind.RECORD, SOURCE, b"on")]

    def test_a_limit_is_kept_and_everything_comes_in_the_end(
        self, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        keys = [SourceKey(f"s{i}", i) for i in range(7)]
        for key in keys:
            source.announce(key, b"r", EVER)
        at = reader.initial_offset("image")
        found: list[DiscoveryEvent] = []
        until = time.monotonic() + TIMEOUT
        while not found or found[-1].kind is not Kind.IMAGE_END:
            assert time.monotonic() < until
            there = reader.latest_offset(at, 3)
            part = read_events(reader, at, there)
            assert len(part) <= 3
            found, at = found + part, there
        assert sorted(str(c.source) for c in found[:-1]) == sorted(map(str, keys))
        source.publish_events(SOURCE, [b"%d" % i for i in range(7)], [f"e{i}" for i in range(7)])
        events: list[DiscoveryEvent] = []
        while len(events) < 7:
            assert time.monotonic() < until
            there = reader.latest_offset(at, 3)
            part = read_events(reader, at, there)
            assert len(part) <= 3
            events, at = events + part, there
        assert [c.payload for c in events] == [b"%d" % i for i in range(7)]

"""Discovery over a real server: expiry, processes, faults, readers that know nothing of us, and many of each."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridge import Change, ChangeKind, Position, SourceKey
from mama_spark.bridges.nats import announcer, shelf
from mama_spark.bridges.nats.board import ADVISORY_BYTES, METADATA, Board
from mama_spark.bridges.nats.changes import Stored
from mama_spark.bridges.nats.discovery import NatsDiscovery
from mama_spark.bridges.nats.server import Cluster, NatsServer
from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.bridges.nats.shelf import Shelf
from mama_spark.errors import ConfigError, Unavailable
from mama_spark.testing.driving import eventually
from mama_spark.testing.servers import Admin

DESK, TWIN = SourceKey("desk", 7), SourceKey("desk", 8)
RECORD, SUSPECT, OFFLINE, EVENT = ChangeKind.RECORD, ChangeKind.SUSPECT, ChangeKind.OFFLINE, ChangeKind.EVENT
IMAGE_END, GAP = ChangeKind.IMAGE_END, ChangeKind.GAP
READERS = (ChangeKind.SUBSCRIBED, ChangeKind.UNSUBSCRIBED)
TTL = 2.0  #: of sources that shall expire
LONG = 6.0  #: of those that shall not, however busy the machine is


@pytest.fixture(autouse=True)
def _nobody_announces_on() -> Iterator[None]:
    yield
    announcer.clear()


@pytest.fixture
def opened(nats_server: NatsServer) -> Iterator[Callable[..., NatsDiscovery]]:
    """Bridges to the test's server; each name is a connection of its own, as another process would have."""
    bridges: list[NatsDiscovery] = []

    def make(name: str = "one", board: Board | None = None, **settings: Any) -> NatsDiscovery:
        bridge = NatsDiscovery(NatsSettings(**{"servers": (nats_server.url,), "name": name, **settings}), board)
        bridge.open()
        bridges.append(bridge)
        return bridge

    yield make
    for bridge in bridges:
        bridge.close()


class Follower:
    """Reads on and keeps what it was told; readers of JetStream are left out, for tests make some."""

    def __init__(self, bridge: NatsDiscovery, start: Position | None = None, *, readers: bool = False) -> None:
        self.bridge, self.readers = bridge, readers
        self.at = bridge.begin("latest") if start is None else start
        self.found: list[Change] = []

    def step(self, limit: int | None = None) -> list[Change]:
        end = self.bridge.newest(self.at, limit)
        new = [c for block in self.bridge.read(self.at, end) for c in block]
        self.at = end
        self.found += new if self.readers else [c for c in new if c.kind not in READERS]
        return new

    def until(self, enough: Callable[[list[Change]], Any], patience: float = 60.0) -> list[Change]:
        def true() -> bool:
            self.step()
            return bool(enough(self.found))

        try:
            eventually(true, "told", patience)
        except AssertionError:
            raise AssertionError(f"only {self.found[-20:]}") from None
        return self.found

    def kinds(self, source: SourceKey = DESK) -> list[ChangeKind]:
        return [c.kind for c in self.found if c.source == source]

    def told_once(self, source: SourceKey = DESK) -> bool:
        """One record, and one more for each time that the source came back: on a busy machine renewals may be late."""
        letters = "".join(kind.value[0] for kind in self.kinds(source))
        return re.fullmatch("r(sr)*s?", letters) is not None


def has(kind: ChangeKind, source: SourceKey | None = DESK, times: int = 1) -> Callable[[list[Change]], bool]:
    return lambda found: sum(c.kind is kind and c.source == source for c in found) >= times


def end_process_of(bridge: NatsDiscovery) -> None:
    """What others see when a process is gone."""
    keeper = bridge._announcer
    assert keeper is not None
    keeper.loop.run(keeper.stop(), 30, "ending")


ANNOUNCE = """
import sys, time
from mama_spark.bridge import SourceKey
from mama_spark.bridges.nats.changes import Stored
from mama_spark.bridges.nats.discovery import NatsDiscovery
from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.bridges.nats.shelf import Shelf
bridge = NatsDiscovery(NatsSettings((sys.argv[1],)))
bridge.open()
bridge.announce(SourceKey("desk", 7), b"r", float(sys.argv[2]))
print("announced", flush=True)
sys.stdin.read()
"""


class Process:
    """Another process that announces DESK, until it is killed."""

    def __init__(self, url: str, ttl: float) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", ANNOUNCE, url, str(ttl)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ready(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "announced\n"

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.communicate(timeout=30)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self.kill()


# --- announcing ------------------------------------------------------------------------------------------------------


def test_a_killed_process_is_suspect_then_offline_and_one_more_process_keeps_a_source_alive(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    follower = Follower(reader)
    with Process(nats_server.url, 3.0) as first, Process(nats_server.url, 3.0) as second:
        first.ready()
        second.ready()
        first.kill()
        killed = time.monotonic()
        while time.monotonic() < killed + 4:
            follower.step()
            time.sleep(0.05)
        assert follower.told_once(), "one record for both, and the second keeps it"
        second.kill()
        follower.until(has(OFFLINE))
    assert follower.kinds()[-2:] == [SUSPECT, OFFLINE]
    suspect, offline = follower.found[-2:]
    assert 0.5e6 < offline.at - suspect.at < 5e6
    assert [c.kind for c in reader.image()] == [RECORD, OFFLINE, IMAGE_END]
    with Process(nats_server.url, 3.0) as third:
        third.ready()
        follower.until(lambda found: found[-1].kind is RECORD)
        assert [c.kind for c in reader.image()] == [RECORD, IMAGE_END]


def test_a_source_that_finds_itself_given_up_is_announced_again_by_one_and_says_why(
    opened: Callable[..., NatsDiscovery], caplog: pytest.LogCaptureFixture
) -> None:
    reader, one, two = opened("reader"), opened("one"), opened("two")
    follower = Follower(reader)
    for bridge in (one, two):
        bridge.announce(DESK, b"r", TTL)
    keepers = [b._announcer for b in (one, two)]
    for keeper in keepers:  # as if the machine had slept
        assert keeper is not None
        task = keeper.sources[DESK].task
        assert task is not None
        keeper.loop.soon(task.cancel)
    follower.until(has(SUSPECT))
    with caplog.at_level(logging.WARNING, "mama_spark.nats.discovery"):
        for keeper in keepers:
            assert keeper is not None
            keeper.loop.run(keeper._renew_all(keeper.sources[DESK]), 30, "renewing")
    follower.until(has(RECORD, times=2))
    assert follower.kinds() == [RECORD, SUSPECT, RECORD]
    for bridge in (one, two, one):
        keeper = bridge._announcer
        assert keeper is not None
        keeper.loop.run(keeper._renew_all(keeper.sources[DESK]), 30, "renewing")
    follower.step()
    assert follower.told_once()
    assert [r.message for r in caplog.records if "called SUSPECT" in r.message and "sourceTtl" in r.message]
    assert [c.kind for c in reader.image()] == [RECORD, IMAGE_END]


@pytest.mark.parametrize("done", ["nothing", "warn", "live"])
def test_a_process_that_ends_while_it_comes_back_leaves_nothing_undone(
    opened: Callable[..., NatsDiscovery], done: str
) -> None:
    reader, one, two = opened("reader"), opened("one"), opened("two")
    follower = Follower(reader)
    keepers = []
    for bridge in (one, two):
        bridge.announce(DESK, b"r", TTL)
        keeper = bridge._announcer
        assert keeper is not None
        task = keeper.sources[DESK].task
        assert task is not None
        keeper.loop.soon(task.cancel)
        keepers.append(keeper)
    follower.until(has(OFFLINE))

    async def begin_and_end() -> None:
        for part in {"nothing": (), "warn": ("warn",), "live": ("warn", "live")}[done]:
            await keepers[0]._take_up(keepers[0].sources[DESK], part)

    keepers[0].loop.run(begin_and_end(), 30, "coming back")
    keepers[1].loop.run(keepers[1]._renew_all(keepers[1].sources[DESK]), 30, "renewing")
    follower.until(has(RECORD, times=2))
    assert [c.kind for c in reader.image()] == [RECORD, IMAGE_END]


def test_a_withdrawn_source_is_not_brought_back_by_others_and_withdrawing_twice_says_it_once(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader, one, two = opened("reader"), opened("one"), opened("two")
    follower = Follower(reader)
    for bridge in (one, two):
        bridge.announce(DESK, b"on", TTL)
    one.withdraw(DESK, b"off")
    one.withdraw(DESK, b"off")
    keeper = two._announcer
    assert keeper is not None
    eventually(lambda: DESK not in keeper.sources, "the other has noticed")
    follower.until(has(RECORD, times=2))
    one.announce(TWIN, b"mark", TTL)
    follower.until(has(RECORD, TWIN))
    assert [(c.kind, c.payload) for c in follower.found if c.source == DESK] == [(RECORD, b"on"), (RECORD, b"off")]
    two.announce(DESK, b"on", TTL)
    assert [c.payload for c in reader.image()][:-1] == [b"mark", b"on"]


def test_a_source_that_another_process_withdrew_is_back_as_soon_as_it_is_announced_again(
    opened: Callable[..., NatsDiscovery],
) -> None:
    one, two = opened("one"), opened("two")
    one.announce(DESK, b"on", 30.0)
    two.withdraw(DESK, b"off")
    assert [c.payload for c in one.image()][:-1] == [b"off"]
    one.announce(DESK, b"on", 30.0)  # from a process that still renews it
    assert [(c.kind, c.payload) for c in one.image()][:-1] == [(RECORD, b"on")]


def test_a_source_that_ends_does_not_take_the_connection_of_one_that_begins(
    opened: Callable[..., NatsDiscovery],
) -> None:
    bridge = opened()
    bridge.announce(DESK, b"on", 30.0)
    keeper = bridge._announcer
    assert keeper is not None

    async def both(pause: float) -> None:
        ending = asyncio.create_task(keeper.withdraw(DESK, b"off"))
        await asyncio.sleep(pause)
        await asyncio.gather(ending, keeper.announce(0, TWIN, b"on", 30.0))

    for pause in (0.0, 0.001, 0.002, 0.003, 0.004, 0.006):
        keeper.loop.run(both(pause), 60, "one ends, one begins")
        bridge.withdraw(TWIN, b"off")
        assert keeper._shelf is None, "with nothing to renew there is no connection"
        bridge.announce(DESK, b"on", 30.0)


def test_a_closed_bridge_stays_warm_and_another_one_takes_the_source_up(opened: Callable[..., NatsDiscovery]) -> None:
    reader, first = opened("reader"), opened("one")
    follower = Follower(reader)
    first.announce(DESK, b"r", TTL)
    first.close()
    closed = time.monotonic()
    while time.monotonic() < closed + 1.5 * TTL:
        follower.step()
        time.sleep(0.05)
    opened("one").announce(DESK, b"r", TTL)
    follower.step()
    assert follower.told_once()


FORK = """
import os, sys
from mama_spark.bridge import SourceKey
from mama_spark.bridges.nats.changes import Stored
from mama_spark.bridges.nats.discovery import NatsDiscovery
from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.bridges.nats.shelf import Shelf
from mama_spark.errors import ClientClosed
settings = NatsSettings((sys.argv[1],))
parents = NatsDiscovery(settings)
parents.open()
parents.announce(SourceKey("desk", 7), b"r", 6.0)
child = os.fork()
if child == 0:
    try:
        parents.image()
    except ClientClosed:
        own = NatsDiscovery(settings)
        own.open()
        own.announce(SourceKey("desk", 8), b"r", 2.0)
        os._exit(0)
    os._exit(1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
sys.stdin.read()
"""


def test_a_fork_begins_with_nothing_announced_and_ends_what_it_announced(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    follower = Follower(opened())
    command = [sys.executable, "-c", FORK, nats_server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        follower.until(has(OFFLINE, TWIN))
        process.communicate(timeout=30)
    assert follower.told_once(DESK)


def test_records_are_kept_from_vanishing_without_being_told_and_dead_ones_vanish(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    board = Board(kept=6.0)
    one = opened("one", board)
    follower = Follower(one)
    one.announce(DESK, b"r", LONG)
    other = opened("two", board)
    other.announce(TWIN, b"r", TTL)
    end_process_of(other)
    with Admin(nats_server.url) as admin:

        def twin_is_forgotten() -> bool:
            follower.step()
            return "error" in admin.api(
                "STREAM.MSG.GET.MAMA_SOURCES", {"last_by_subj": board.source_subject(TWIN, "rec")}
            ) or ([c.source for c in one.image()][:-1] == [DESK])

        eventually(twin_is_forgotten, "the dead one is forgotten")
        kept = admin.api("STREAM.MSG.GET.MAMA_SOURCES", {"last_by_subj": board.source_subject(DESK, "rec")})
        assert kept["message"]["seq"] > 3, "written again"
    assert [c.source for c in one.image()][:-1] == [DESK]
    assert follower.told_once()
    assert follower.kinds(TWIN) == [RECORD, SUSPECT, OFFLINE]


def test_whoever_has_a_nats_client_can_announce(nats_server: NatsServer, opened: Callable[..., NatsDiscovery]) -> None:
    reader = opened()
    follower = Follower(reader)
    topic = reader.board.topic
    with Admin(nats_server.url) as admin:
        publish(admin, f"{topic}.source.cli.-.rec", b"by hand")
        publish(admin, f"{topic}.source.cli2.5.rec", b"dies", {"Mama-Source-Ttl": "1"})
        publish(admin, f"{topic}.source.cli2.5.live", b"", {"Nats-TTL": "1s"})
        follower.until(has(OFFLINE, SourceKey("cli2", 5)))
    assert [(c.source, c.kind) for c in reader.image()][:-1] == [
        (SourceKey("cli", None), RECORD),
        (SourceKey("cli2", 5), RECORD),
        (SourceKey("cli2", 5), OFFLINE),
    ]


def publish(admin: Admin, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
    """As any client would, acknowledged."""

    async def store() -> None:
        await admin._client.jetstream().publish(subject, payload, headers=headers)

    admin._run(store())


def test_what_cannot_be_read_is_told_with_its_bytes_and_the_reason(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    follower = Follower(reader)
    topic = reader.board.topic
    bad = [f"{topic}.source.x", f"{topic}.source.a.b.rec", f"{topic}.source.=zz.1.rec", f"{topic}.source.a.1.what"]
    with Admin(nats_server.url) as admin:
        for subject in bad:
            publish(admin, subject, b"\x00\xff")
        publish(admin, f"{topic}.source.ok.1.rec", b"\xff not a message \x00")
        publish(admin, f"{topic}.event.a.b.c", b"\x01")
    follower.until(lambda found: len(found) >= len(bad) + 2)
    unread = [c for c in follower.found if c.source is None and c.kind is RECORD]
    assert [c.payload for c in unread] == [b"\x00\xff"] * len(bad)
    assert all(c.info for c in unread)
    assert [c.info is not None for c in follower.found if c.kind is EVENT] == [True]
    image = reader.image()
    assert sum(c.source is None and c.kind is RECORD for c in image) == len(bad)
    assert [c.payload for c in image if c.source == SourceKey("ok", 1)] == [b"\xff not a message \x00"]


def test_two_sources_of_one_name_are_two(opened: Callable[..., NatsDiscovery]) -> None:
    one = opened("one")
    other = opened("two")
    follower = Follower(one)
    one.announce(DESK, b"7", 20.0)
    other.announce(TWIN, b"8", TTL)
    end_process_of(other)
    follower.until(has(OFFLINE, TWIN))
    assert follower.kinds(DESK) == [RECORD]
    assert [(c.source, c.kind) for c in one.image()][:-1] == [(DESK, RECORD), (TWIN, RECORD), (TWIN, OFFLINE)]


def test_times_are_those_of_the_server(opened: Callable[..., NatsDiscovery], monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 30 * 86400)  # this machine's clock is a month behind
    one = opened()
    follower = Follower(one)
    one.announce(DESK, b"r", TTL)
    one.tell(DESK, [b"e"], ["e"])
    end_process_of(one)
    follower.until(has(OFFLINE))
    assert all(abs(c.at / 1e6 - now) < 3600 for c in [*follower.found, *one.image()])
    one.announce(DESK, b"r", TTL)
    assert [c.kind for c in one.image()] == [RECORD, IMAGE_END]


# --- losses ----------------------------------------------------------------------------------------------------------


def premade(admin: Admin, board: Board, changes: dict[str, Any]) -> None:
    for config in board.streams():
        config = {**config, **(changes if config["name"] == board.events else {})}
        assert "error" not in admin.api(f"STREAM.CREATE.{config['name']}", config)


def test_what_the_limits_took_before_it_was_read_is_a_gap_and_nothing_else_is(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    with Admin(nats_server.url) as admin:
        premade(admin, Board(), {"max_msgs": 50})
        one = opened("one")
        follower = Follower(one)
        one.tell(DESK, [b"%d" % i for i in range(10)], [f"a{i}" for i in range(10)])
        follower.until(has(EVENT, times=10))
        assert not [c for c in follower.found if c.kind is GAP]
        asleep = follower.at
        one.tell(DESK, [b"%d" % i for i in range(200)], [f"b{i}" for i in range(200)])
        first = admin.info("MAMA_EVENTS")["state"]["first_seq"]
        found = Follower(opened("two"), asleep)
        found.until(lambda c: has(EVENT)(c) and c[-1].payload == b"199")
    gap, *rest = found.found
    assert gap.kind is GAP
    assert gap.gap is not None
    assert gap.gap[0] == asleep["events"] + 1
    assert gap.gap[1] >= first - 1
    told = [int(c.payload or b"") for c in rest]
    assert told == list(range(told[0], 200))
    assert rest[0].sequence == gap.gap[1] + 1, "what is not in the gap is told"


def test_renewals_that_vanish_are_no_gap(opened: Callable[..., NatsDiscovery]) -> None:
    one, reader = opened("one"), opened("two")
    one.announce(DESK, b"r", LONG)
    start = reader.begin("image")
    follower = Follower(reader, start)
    follower.step()
    asleep = time.monotonic()
    while time.monotonic() < asleep + 0.7 * LONG:
        assert reader.newest(follower.at) == follower.at, "renewals move nothing"
        time.sleep(0.2)
    again = Follower(opened("three"), follower.at)
    one.tell(DESK, [b"e"], ["e"])
    again.until(has(EVENT))
    assert [c.kind for c in again.found] == [EVENT]
    earliest = Follower(reader, reader.begin("earliest"))
    earliest.until(has(EVENT))
    assert [c.kind for c in earliest.found] == [RECORD, EVENT]


@pytest.mark.parametrize("stream", ["MAMA_EVENTS", "MAMA_SOURCES", "both"])
def test_a_stream_deleted_and_made_again_is_a_gap_and_a_fresh_image(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery], stream: str
) -> None:
    one, reader = opened("one"), opened("reader", retry_deadline=10.0, connect_timeout=2.0)
    one.announce(DESK, b"r", TTL)
    follower = Follower(reader, reader.begin("image"))
    follower.step()
    one.tell(DESK, [b"e"], ["e"])
    follower.until(has(EVENT))
    with Admin(nats_server.url) as admin:
        for name in ["MAMA_EVENTS", "MAMA_SOURCES"] if stream == "both" else [stream]:
            assert admin.api(f"STREAM.DELETE.{name}").get("success")
    again = opened("again")  # whoever comes first makes what is missing
    again.announce(TWIN, b"twin", TTL)
    reader._open()[1]._looked = float("-inf")  # else it looks again within half a minute
    before = len(follower.found)
    follower.until(lambda found: IMAGE_END in [c.kind for c in found[before:]])
    follower.until(lambda found: {DESK, TWIN} <= {c.source for c in found[before:]})
    new = follower.found[before:]
    kinds = [c.kind for c in new]
    assert kinds.index(GAP) < kinds.index(IMAGE_END)
    assert new[kinds.index(GAP)].origin == ("MAMA_EVENTS" if stream == "both" else stream)
    again.announce(TWIN, b"more", TTL)
    follower.until(lambda found: any(c.payload == b"more" for c in found))
    end_process_of(again)
    follower.until(has(OFFLINE, TWIN))


def test_a_planned_batch_of_a_stream_that_is_gone_is_a_gap(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened("reader")
    start = reader.begin("latest")
    reader.tell(DESK, [b"1", b"2"], ["1", "2"])
    end = reader.newest(start)
    with Admin(nats_server.url) as admin:
        assert admin.api("STREAM.DELETE.MAMA_EVENTS").get("success")
    again = opened("again")
    again.tell(DESK, [b"x"] * 9, [f"x{i}" for i in range(9)])
    found = [c for block in again.read(start, end) for c in block if c.kind not in READERS]
    assert [(c.kind, c.gap) for c in found] == [(GAP, (start["events"] + 1, end["events"]))]


def test_sources_made_again_by_hand_below_what_was_sourced_are_refused_by_name(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    one = opened("one")
    one.announce(DESK, b"r", TTL)
    one.close()
    announcer.clear()
    with Admin(nats_server.url) as admin:
        assert admin.api("STREAM.DELETE.MAMA_SOURCES").get("success")
        assert "error" not in admin.api("STREAM.CREATE.MAMA_SOURCES", Board().streams()[0])
        with pytest.raises(ConfigError, match="first_seq="):
            opened("two")


# --- what is in the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deny", "call", "word"),
    [
        ("$JS.API.STREAM.INFO.MAMA_SOURCES", "open", "MAMA_SOURCES"),
        ("$JS.API.STREAM.CREATE.MAMA_EVENTS", "open", "MAMA_EVENTS"),
        ("$JS.API.DIRECT.GET.MAMA_SOURCES", "image", "MAMA_SOURCES"),
        ("_MAMA_SOURCE_DISCOVERY.source.>", "announce", "_MAMA_SOURCE_DISCOVERY.source.desk.7.warn"),
        ("_MAMA_SOURCE_DISCOVERY.mark", "latest", "_MAMA_SOURCE_DISCOVERY.mark"),
        ("$JS.API.STREAM.PURGE.MAMA_SOURCES", "withdraw", "MAMA_SOURCES"),
    ],
)
def test_a_missing_permission_is_told_by_subject_or_stream(tmp_path: Path, deny: str, call: str, word: str) -> None:
    users = f'authorization {{ users: [{{user: u, password: p, permissions: {{ publish: {{deny: ["{deny}"]}} }} }}] }}'
    with NatsServer(tmp_path / "nats", config=users) as server:
        bridge = NatsDiscovery(NatsSettings((server.url,), user="u", password="p"))
        calls: dict[str, Callable[[], object]] = {
            "open": bridge.open,
            "image": bridge.image,
            "announce": lambda: bridge.announce(DESK, b"r", TTL),
            "withdraw": lambda: bridge.withdraw(DESK, b"r"),
            "latest": lambda: bridge.begin("latest"),
        }
        if call != "open":
            bridge.open()
        with pytest.raises(ConfigError, match=word.replace(".", r"\.")):
            calls[call]()
        bridge.close()
        announcer.clear()


@pytest.mark.parametrize(
    ("change", "word"), [({"allow_msg_ttl": False}, "allow_msg_ttl"), ({"sources": None}, "MAMA_SOURCES")]
)
def test_a_stream_that_cannot_serve_is_refused_by_its_setting(
    nats_server: NatsServer, change: dict[str, Any], word: str
) -> None:
    with Admin(nats_server.url) as admin:
        premade(admin, Board(), change)
    with pytest.raises(ConfigError, match=word):
        NatsDiscovery(NatsSettings((nats_server.url,))).open()


def test_streams_with_other_limits_are_left_as_they_are(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    with Admin(nats_server.url) as admin:
        premade(admin, Board(), {"max_msgs": 77, "max_msgs_per_subject": 70})
        opened()
        assert admin.info("MAMA_EVENTS")["config"]["max_msgs"] == 77
        assert admin.info("MAMA_ADVISORIES")["config"]["max_bytes"] == ADVISORY_BYTES


def test_advisories_that_another_stream_keeps_are_told(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("AUDIT", ["$JS.EVENT.ADVISORY.>"], no_ack=True)
    with pytest.raises(ConfigError, match=r"MAMA_ADVISORIES.*ADVISORY"):
        NatsDiscovery(NatsSettings((nats_server.url,))).open()
    bridge = NatsDiscovery(NatsSettings((nats_server.url,)), Board(advisories=None))
    bridge.open()
    assert [c.kind for c in bridge.image()] == [IMAGE_END]
    bridge.close()


def test_a_server_without_jetstream_is_told(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "nats", jetstream=None) as server,
        pytest.raises(ConfigError, match="JetStream is not enabled"),
    ):
        NatsDiscovery(NatsSettings((server.url,))).open()


def test_nobody_there_is_unavailable(nats_server: NatsServer, opened: Callable[..., NatsDiscovery]) -> None:
    bridge = opened("one", retry_deadline=1.0, connect_timeout=1.0)
    start = bridge.begin("latest")
    nats_server.shutdown()
    calls: list[Callable[[], object]] = [bridge.image, lambda: bridge.newest(start)]
    calls += [lambda: bridge.tell(DESK, [b"e"], ["e"]), lambda: bridge.announce(DESK, b"r", TTL)]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


# --- readers that know nothing of us ---------------------------------------------------------------------------------


def test_readers_made_with_a_plain_client_are_seen_coming_and_going(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        follower = Follower(reader, readers=True)
        filters: list[dict[str, Any]] = [
            {"durable_name": "one", "filter_subject": "t.a.*"},
            {"durable_name": "two", "filter_subjects": ["t.b", "t.c.>"]},
            {"durable_name": "all"},
            {"durable_name": "mama-ours", "filter_subject": "t.d"},
            {"durable_name": "progress", "filter_subject": "t.d", "metadata": METADATA},
            {"name": "short", "filter_subject": "t.e", "inactive_threshold": 1_000_000_000},
        ]
        for config in filters:
            name = config.get("durable_name") or config["name"]
            body = {"stream_name": "T", "config": {"ack_policy": "explicit", **config}}
            assert "error" not in admin.api(f"CONSUMER.CREATE.T.{name}", body)
        follower.until(lambda found: len(found) >= 5)
        came = [(c.kind.value, c.topic) for c in follower.found]
        assert came == [("subscribed", t) for t in ("t.a.*", "t.b", "t.c.>", "t.>", "t.e")]
        info = json.loads(follower.found[0].info or "")
        assert (info["stream"], info["consumer"], info["client"]["lang"]) == ("T", "one", "python3")
        follower.until(lambda found: any(c.kind is ChangeKind.UNSUBSCRIBED and c.topic == "t.e" for c in found))
        before = len(follower.found)
        for name in ("progress", "one", "two"):
            assert admin.api(f"CONSUMER.DELETE.T.{name}").get("success")
        follower.until(lambda found: len(found) >= before + 3)
    gone = [(c.kind.value, c.topic) for c in follower.found[before:]]
    assert gone == [("unsubscribed", t) for t in ("t.a.*", "t.b", "t.c.>")]
    assert all(c.origin == "MAMA_ADVISORIES" for c in follower.found)


def test_a_consumer_made_again_with_other_filters_is_told_with_those(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    follower = Follower(opened(), readers=True)
    topics = ["t.a", "t.b", "t.c"]
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        for topic in topics:
            body = {"stream_name": "T", "config": {"durable_name": "x", "filter_subject": topic}}
            assert "error" not in admin.api("CONSUMER.CREATE.T.x", body)
            assert admin.api("CONSUMER.DELETE.T.x").get("success")
    follower.until(lambda found: len(found) >= 2 * len(topics))
    assert [(c.kind, c.topic) for c in follower.found] == [(kind, topic) for topic in topics for kind in READERS]


def test_readers_are_told_again_the_same_and_missed_while_nobody_looks(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    start = opened("early").begin("latest")
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        for i in range(5):
            body = {"stream_name": "T", "config": {"durable_name": f"c{i}", "filter_subject": f"t.{i}"}}
            assert "error" not in admin.api(f"CONSUMER.CREATE.T.c{i}", body)
            assert admin.api(f"CONSUMER.DELETE.T.c{i}").get("success")
    late = opened("late")
    follower = Follower(late, start, readers=True)
    positions = [follower.at]
    while len(follower.found) < 10:
        follower.step(limit=4)
        positions.append(follower.at)
    assert [c.topic for c in follower.found] == [f"t.{i // 2}" for i in range(10)]
    again = [c for a, b in itertools.pairwise(positions) for block in late.read(a, b) for c in block]
    assert again == follower.found


# --- many ------------------------------------------------------------------------------------------------------------


def test_the_image_of_ten_thousand_sources_is_exact(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    n = 10_000
    keys = [SourceKey(f"source {i}", i) for i in range(n)]

    with Admin(nats_server.url) as admin:

        async def announce_all() -> None:
            for i, key in enumerate(keys):
                for part, life in (("rec", "600s"), ("warn", "300s"), ("live", "600s")):
                    headers = {"Nats-TTL": life, "Mama-Source-Ttl": "600"} if part == "rec" else {"Nats-TTL": life}
                    await admin._client.publish(
                        reader.board.source_subject(key, part), b"%d" % i if part == "rec" else b"", headers=headers
                    )
                if i % 500 == 0:
                    await admin._client.flush()
            await admin._client.flush()

        admin._run(announce_all())
        eventually(lambda: admin.info("MAMA_SOURCES")["state"]["messages"] == 3 * n, "all are stored")
    began = time.monotonic()
    image = reader.image()
    took = time.monotonic() - began
    assert [(c.kind, c.source, c.payload) for c in image[:-1]] == [(RECORD, k, b"%d" % i) for i, k in enumerate(keys)]
    begin = reader.begin("image")
    end = reader.newest(begin)
    assert [c for block in reader.read(begin, end) for c in block][:-1] == image[:-1]
    logging.getLogger(__name__).info("image of %d sources in %.2f s", n, took)


def changes_at_a_rate(opened: Callable[..., NatsDiscovery], seconds: float) -> None:
    """1,000 changes a second from two bridges, read while they come; nothing lost, nothing twice."""
    tellers, reader = [opened("one"), opened("two")], opened("reader")
    follower = Follower(reader)
    began, sent = time.monotonic(), 0
    while sent < 1000 * seconds:
        for teller in tellers:
            teller.tell(DESK, [b"%d" % (sent + i) for i in range(50)], [f"{sent + i}" for i in range(50)])
            sent += 50
        tellers[0].announce(TWIN, b"%d" % sent, 30.0)
        follower.step()
        time.sleep(max(0.0, began + sent / 1000 - time.monotonic()))
    follower.until(has(EVENT, times=sent))
    assert [int(c.payload or b"") for c in follower.found if c.kind is EVENT] == list(range(sent))
    assert [int(c.payload or b"") for c in follower.found if c.kind is RECORD] == list(range(100, sent + 1, 100))
    assert not [c for c in follower.found if c.kind not in (EVENT, RECORD)]


def test_a_thousand_changes_a_second_are_all_told(opened: Callable[..., NatsDiscovery]) -> None:
    changes_at_a_rate(opened, 3)


@pytest.mark.slow
def test_a_thousand_changes_a_second_for_a_minute_are_all_told(opened: Callable[..., NatsDiscovery]) -> None:
    changes_at_a_rate(opened, 60)


def test_a_hundred_thousand_events_are_told_at_once(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    one = opened()
    n = 100_000
    one.tell(DESK, [b"%d" % i for i in range(n)], [f"{i}" for i in range(n)])
    one.tell(DESK, [b"again"], ["5"])
    follower = Follower(one, one.begin("earliest"))
    follower.until(has(EVENT, times=n))
    assert [int(c.payload or b"") for c in follower.found] == list(range(n))


# --- servers that go -------------------------------------------------------------------------------------------------


def test_a_server_restart_while_announcing_and_reading_costs_nothing(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    one, reader = opened("one"), opened("reader")
    one.announce(DESK, b"r", 10.0)
    follower = Follower(reader, reader.begin("image"))
    follower.step()
    for i in range(3):
        one.tell(DESK, [b"%d" % i], [f"{i}"])
        if i < 2:
            nats_server.kill()
            nats_server.start()
    follower.until(has(EVENT, times=3))
    keeper = one._announcer
    assert keeper is not None
    known = keeper.sources[DESK].known["live"]
    eventually(lambda: keeper.sources[DESK].known["live"] > known, "it renews again")
    assert [c.payload for c in follower.found if c.kind is EVENT] == [b"0", b"1", b"2"]
    assert follower.kinds() == [RECORD, EVENT, EVENT, EVENT]
    assert not [c for c in follower.found if c.kind is GAP]


def test_a_leader_that_goes_while_announcing_and_reading_costs_nothing(tmp_path: Path) -> None:
    board, made = Board(), (None, 10058)
    with Cluster(tmp_path / "cluster") as cluster, Admin(cluster.url) as admin:
        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        for config in board.streams(3):
            while admin.api(f"STREAM.CREATE.{config['name']}", config).get("error", {}).get("err_code") not in made:
                time.sleep(0.05)  # until three peers are known; the test's own time limit ends this
        settings = NatsSettings(tuple(cluster.url.split(",")), retry_deadline=60.0, connect_timeout=2.0)
        one, reader = NatsDiscovery(settings), NatsDiscovery(replace(settings, name="reader"))
        one.open()
        reader.open()
        one.announce(DESK, b"r", 20.0)
        follower = Follower(reader, reader.begin("image"))
        follower.step()
        admin.create_stream("T", ["t.>"])
        seen = Follower(reader, readers=True)
        body = {"stream_name": "T", "config": {"durable_name": "c", "filter_subject": "t.a"}}
        assert "error" not in admin.api("CONSUMER.CREATE.T.c", body)
        seen.until(lambda found: [c.topic for c in found if c.kind in READERS] == ["t.a"])
        for i in range(3):
            one.tell(DESK, [b"%d" % (10 * i + k) for k in range(10)], [f"{10 * i + k}" for k in range(10)])
            follower.step()
            if i == 0:
                assert admin.api("STREAM.LEADER.STEPDOWN.MAMA_EVENTS").get("success")
            elif i == 1:
                leader = eventually(lambda: admin.info("MAMA_EVENTS")["cluster"].get("leader"), "a leader")
                cluster.node(leader).kill()
        one.announce(TWIN, b"twin", 20.0)
        follower.until(has(RECORD, TWIN))
        follower.until(has(EVENT, times=30))
        events = [int(c.payload or b"") for c in follower.found if c.kind is EVENT]
        assert sorted(events) == list(range(30))
        assert follower.kinds().count(RECORD) == 1
        assert not {SUSPECT, OFFLINE, GAP} & {c.kind for c in follower.found}
        assert {c.source for c in reader.image()} == {DESK, TWIN, None}
        one.close()
        reader.close()
        announcer.clear()


# --- several at once, and what is lost singly ------------------------------------------------------------------------


def test_those_who_come_first_at_the_same_time_make_the_streams_together(nats_server: NatsServer) -> None:
    bridges = [NatsDiscovery(NatsSettings((nats_server.url,), name=f"{i}")) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda bridge: bridge.open(), bridges))
    for bridge in bridges:
        assert [c.kind for c in bridge.image()] == [IMAGE_END]
        bridge.close()


def test_opening_again_asks_nothing_and_leaves_no_advisories(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    for name in ("first", "one"):
        opened(name).close()
    with Admin(nats_server.url) as admin:
        audits = [m for m in admin.messages("MAMA_ADVISORIES") if b"STREAM.INFO.MAMA_SOURCES" in m.payload]
        for _ in range(5):
            opened("one").close()
        later = [m for m in admin.messages("MAMA_ADVISORIES") if b"STREAM.INFO.MAMA_SOURCES" in m.payload]
    assert len(later) == len(audits) > 0


def test_each_query_has_an_image_of_its_own_and_does_not_see_those_of_others(
    opened: Callable[..., NatsDiscovery],
) -> None:
    one, two = opened("one"), opened("two")
    one.announce(DESK, b"r", LONG)
    begin = one.begin("image")
    first = one.newest(begin)
    one.announce(TWIN, b"r", LONG)
    second = two.newest(begin)
    assert [c.source for block in two.read(begin, first) for c in block] == [DESK, None]
    assert [c.source for block in one.read(begin, second) for c in block] == [DESK, TWIN, None]
    follower = Follower(one, first)
    one.tell(DESK, [b"e"], ["e"])
    follower.until(has(EVENT))
    assert [(c.kind, c.source) for c in follower.found] == [(RECORD, TWIN), (EVENT, DESK)]
    third = one.newest(begin)
    assert third["image"] != first["image"], "a query that begins anew has an image of that moment"


def test_what_changes_while_an_image_is_taken_is_in_it_or_told_after_it(opened: Callable[..., NatsDiscovery]) -> None:
    one, reader = opened("one"), opened("two")
    keys = [SourceKey("s", i) for i in range(150)]

    def announce_all() -> None:
        for key in keys:
            one.announce(key, b"r", 60.0)

    with ThreadPoolExecutor(1) as pool:
        announcing = pool.submit(announce_all)
        follower = Follower(reader, reader.begin("image"))
        eventually(lambda: len(reader.image()) > 20, "some are there")
        follower.until(lambda found: len({c.source for c in found}) == len(keys) + 1)
        announcing.result()
    follower.step()
    assert sorted(c.source.id or 0 for c in follower.found if c.source is not None) == list(range(len(keys)))


def test_a_source_that_speaks_while_a_long_image_is_read_is_in_it(
    opened: Callable[..., NatsDiscovery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record and its renewals move to the end of the stream, behind what the end was at first."""
    reader, one = opened("reader"), opened("one")
    keys = [SourceKey("s", i) for i in range(6)]
    for key in keys:
        one.announce(key, b"r", 60.0)
    keeper, pages, page = one._announcer, itertools.count(1), Shelf._page
    assert keeper is not None

    async def speaking(self: Shelf, stream: str, after: int, subject: str) -> tuple[list[Stored], int]:
        found = await page(self, stream, after, subject)
        if next(pages) == 2:
            await keeper._begin(announcer.Announced(keys[-1], b"changed", 60.0))
        return found

    monkeypatch.setattr(shelf, "_PAGE", 4)
    monkeypatch.setattr(Shelf, "_page", speaking)
    image = {c.source: c.payload for c in reader.image() if c.kind is RECORD}
    assert image == {**dict.fromkeys(keys[:-1], b"r"), keys[-1]: b"changed"}


def test_advisories_that_were_lost_are_a_gap(nats_server: NatsServer, opened: Callable[..., NatsDiscovery]) -> None:
    reader = opened()
    follower = Follower(reader, readers=True)
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        for name in ("lost", "kept"):
            body = {"stream_name": "T", "config": {"durable_name": name, "filter_subject": f"t.{name}"}}
            assert "error" not in admin.api(f"CONSUMER.CREATE.T.{name}", body)
            if name == "lost":
                first = admin.info("MAMA_ADVISORIES")["state"]["last_seq"] + 1
                admin.api("STREAM.PURGE.MAMA_ADVISORIES", {"seq": first})
        follower.until(lambda found: any(c.topic == "t.kept" for c in found))
    gap, *rest = follower.found
    assert (gap.kind, gap.origin) == (GAP, "MAMA_ADVISORIES")
    assert gap.gap is not None
    assert gap.gap[1] >= first - 1
    assert [c.topic for c in rest] == ["t.kept"]


def test_an_image_that_is_not_kept_any_more_is_a_gap(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    reader.announce(DESK, b"r", LONG)
    begin = reader.begin("image")
    end = reader.newest(begin)
    with Admin(nats_server.url) as admin:
        admin.api("STREAM.PURGE.MAMA_EVENTS")
    assert [c.kind for block in reader.read(begin, end) for c in block] == [GAP]
    later = Follower(reader, end)
    reader.tell(DESK, [b"e"], ["e"])
    later.until(has(EVENT))


def test_a_consumer_whose_making_is_not_kept_is_told_without_its_topics(
    nats_server: NatsServer, opened: Callable[..., NatsDiscovery]
) -> None:
    reader = opened()
    with Admin(nats_server.url) as admin:
        admin.create_stream("T", ["t.>"])
        body = {"stream_name": "T", "config": {"durable_name": "old", "filter_subject": "t.a"}}
        assert "error" not in admin.api("CONSUMER.CREATE.T.old", body)
        eventually(lambda: admin.info("MAMA_ADVISORIES")["state"]["messages"] > 2, "advisories are stored")
        admin.api("STREAM.PURGE.MAMA_ADVISORIES")
        follower = Follower(reader, readers=True)
        assert admin.api("CONSUMER.DELETE.T.old").get("success")
        follower.until(lambda found: any(c.kind is ChangeKind.UNSUBSCRIBED for c in found))
    (gone,) = [c for c in follower.found if c.kind is ChangeKind.UNSUBSCRIBED]
    assert gone.topic is None
    info = json.loads(gone.info or "")
    assert (info["stream"], info["consumer"]) == ("T", "old")
    assert "not known" in info["note"]

"""The suite of bridges over both framings: a peer that subscribes to everything is the oracle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.messages.omnm import decode
from mama_spark.openmama.bridge import OpenMamaBridge, OpenMamaSettings
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup, publish
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, message, naming, peer, url_of
from tests.support.ports import lasting_port


class CollectingPeer:
    """Subscribes to topics that begin with ``t.`` or ``x``, and keeps all messages."""

    def __init__(self, settings: PeerSettings) -> None:
        self.messages: list[PublishedMessage] = []
        self._peer = OpenMamaPeer(settings)
        self._stop = threading.Event()
        self._polls = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peer.open()
        for prefix in ("t.", "xx"):
            self._peer.subscribe(prefix, prefix=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for got in self._peer.poll(0.02).frames:
                frame = got.frame
                self.messages.append(PublishedMessage(len(self.messages), frame.topic, frame.payload, {}))
            self._polls += 1

    def stored(self) -> list[PublishedMessage]:
        """What has come until nothing more came for a while."""
        while True:
            seen, polls = len(self.messages), self._polls
            eventually(partial(self._polled_since, polls + 8), "the peer polls")
            if len(self.messages) == seen:
                return list(self.messages)

    def _polled_since(self, polls: int) -> bool:
        return self._polls > polls

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._peer.close()


class _OpenMamaSuite(BridgeSuite):
    without: ClassVar[frozenset[str]] = frozenset({"sequence", "dedup", "headers"})

    @pytest.fixture
    def bridge(self, site: SuiteSetup) -> Iterator[OpenMamaBridge]:
        """Open, with the reader connected: until then it takes nothing."""
        bridge = site.make()
        assert isinstance(bridge, OpenMamaBridge)
        bridge.open()
        eventually(lambda: bridge.poll(0.01) or bridge.peer.wanted("xx"), "the reader subscribes")
        yield bridge
        bridge.close()

    def site_of(self, sending: PeerSettings, receiving: PeerSettings) -> Iterator[SuiteSetup]:
        reader = CollectingPeer(receiving)

        def make(acks: bool = True) -> OpenMamaBridge:
            return OpenMamaBridge(OpenMamaSettings(sending, acks, wait_for_subscribers=60.0))

        try:
            headers = {"no": ["headers"]}  # which no message of OpenMAMA has
            yield SuiteSetup(make, reader.stored, silent=lambda: make(False), refused=headers)
        finally:
            reader.close()


class TestOzWithNaming(_OpenMamaSuite):
    @pytest.fixture
    def site(self) -> Iterator[SuiteSetup]:
        with ExitStack() as stack:
            settings = PeerSettings.from_urls([url_of(stack.enter_context(naming()))])
            yield from self.site_of(settings, settings)


class TestZmqDirect(_OpenMamaSuite):
    """Bridges connect, the reader binds."""

    @pytest.fixture
    def site(self) -> Iterator[SuiteSetup]:
        sending = PeerSettings.from_urls([f"zmq://127.0.0.1:{lasting_port()}"])
        bound = sending.outgoing[0]._replace(bind=True)
        yield from self.site_of(sending.without_receiving(), replace(sending, outgoing=(), incoming=(bound,)))


@pytest.mark.spec("OW26")
def test_tasks_that_end_at_once_take_their_leave_behind_all_that_they_sent() -> None:
    n = 2_000

    def task(url: str, first: int) -> None:
        bridge = OpenMamaBridge(OpenMamaSettings(PeerSettings.from_urls([url]), wait_for_subscribers=60.0))
        bridge.open()
        eventually(lambda: bridge.poll(0.01) or bridge.peer.wanted("A"), "the reader subscribes")
        publish(bridge, MessageBatch.of(["A"] * n, [message(n=first + i) for i in range(n)]))
        bridge.close()

    with naming() as server, peer(url_of(server)) as reader:
        reader.subscribe("A")
        watched = Watched(reader)
        tasks = [threading.Thread(target=task, args=(url_of(server), first), daemon=True) for first in (0, n)]
        for one in tasks:
            one.start()
        watched.until(lambda: len([p for p in watched.of(reader).peers if p.orderly]) == 2, "each takes its leave")
        watched.until(lambda: len(watched.of(reader).frames) >= 2 * n, "all arrive")
        got = [decode(f.frame.payload).get("n") for f in watched.of(reader).frames]
        assert [[x for x in got if x // n == k] for k in (0, 1)] == [list(range(n)), list(range(n, 2 * n))]

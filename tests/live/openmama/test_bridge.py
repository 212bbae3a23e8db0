"""The publisher bridge: waits for readers, tells what nobody wants, is held by a stopped reader, and ends in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.bridge import Refusals
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.messages.omnm import decode
from mama_spark.openmama.bridge import OpenMamaBridge, OpenMamaSettings
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.options.window_config import WindowConfig
from mama_spark.publishing.batch_config import BatchConfig, OnOutage
from mama_spark.publishing.batch_publisher import BatchPublisher
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, message, naming, peer, url_of
from tests.support.openmama.slow_reader import SlowReader
from tests.support.ports import lasting_port

SPAWN = multiprocessing.get_context("spawn")


def batch(n: int, topic: str = "A", first: int = 0) -> MessageBatch:
    return MessageBatch.of([topic] * n, [message(n=i) for i in range(first, first + n)])


def drained(url: str, *batches: MessageBatch, **settings: Any) -> list[FlightBatch]:
    """Published as the sink does it; the finished flights."""
    finished: list[FlightBatch] = []
    bridge = OpenMamaBridge(OpenMamaSettings(PeerSettings.from_urls([url]), **settings))
    bridge.open()
    publisher = BatchPublisher(bridge, WindowConfig(4096, 2048), on_finished=finished.append)
    publisher.start()
    try:
        for one in batches:
            publisher.put(one)
        publisher.drain()
    finally:
        publisher.stop()
        bridge.close()
    return finished


def numbers(watched: Watched, one: OpenMamaPeer) -> list[int]:
    return [decode(f.frame.payload).get("n") for f in watched.of(one).frames]


@pytest.mark.spec("OW10")
def test_rows_that_nobody_wants_fail_or_are_published() -> None:
    with naming() as server, peer(url_of(server)) as reader:
        reader.subscribe("A")
        both = MessageBatch.of(["A", "B"] * 10, [message(n=i) for i in range(20)])
        result: dict[bool, list[FlightBatch]] = {}

        def publish_twice() -> None:
            for need in (True, False):
                result[need] = drained(url_of(server), both, wait_for_subscribers=0.8, require_subscribers=need)

        task = threading.Thread(target=publish_twice, daemon=True)
        task.start()
        watched = Watched(reader)
        watched.until(lambda: not task.is_alive(), "the tasks end")
        watched.until(lambda: len(watched.of(reader).frames) == 20, "what is wanted arrives")
    (failed,), (published,) = result[True], result[False]
    odd = np.arange(20) % 2 == 1
    assert (failed.state == np.where(odd, FlightState.COMPLETED_EXCEPTIONALLY, FlightState.ACKED)).all()
    assert {e.status for e in failed.errors.values()} == {"NO_SUBSCRIBERS"}
    assert "nobody subscribed to B within 0.8 s" in failed.errors[1].info
    assert (published.state == np.where(odd, FlightState.PUBLISHED, FlightState.ACKED)).all()


def read(url: str, pipe: Connection, expected: int) -> None:
    """A reader in a process of its own: says when it is there, and what it got."""
    one = OpenMamaPeer(replace(PeerSettings.from_urls([url]), high_water_mark=100))
    one.open()
    one.subscribe("A")
    pipe.send(os.getpid())
    got: list[int] = []
    while len(got) < expected:
        got += [decode(f.frame.payload).get("n") for f in one.poll(0.5).frames]
    pipe.send(got)
    one.close()


@contextmanager
def stopped_reader(n: int, full_timeout: float, **settings: Any) -> Iterator[tuple[OpenMamaBridge, int, Connection]]:
    """A bridge, process and pipe of a reader of ``n`` messages that stands still; killed at the end."""
    with naming() as server:
        mine, theirs = SPAWN.Pipe()
        reader = SPAWN.Process(target=read, args=(url_of(server), theirs, n), daemon=True)
        reader.start()
        pid = mine.recv()
        given = replace(PeerSettings.from_urls([url_of(server)]), high_water_mark=100, **settings)
        bridge = OpenMamaBridge(OpenMamaSettings(given, wait_for_subscribers=60.0, full_timeout=full_timeout))
        bridge.open()
        try:
            eventually(lambda: bridge.poll(0.05) or bridge.peer.wanted("A"), "the reader is there")
            os.kill(pid, signal.SIGSTOP)
            yield bridge, pid, mine
        finally:
            bridge.close()
            reader.kill()
            reader.join(60)


def large(n: int) -> MessageBatch:
    return MessageBatch.of(["A"] * n, [message(n=i, filling="x" * 10_000) for i in range(n)])


@pytest.mark.spec("OW11")
def test_a_reader_that_stops_holds_the_task_and_misses_nothing() -> None:
    n = 3_000
    big = large(n)
    with stopped_reader(n, full_timeout=600.0) as (bridge, pid, pipe):
        sent, still = 0, time.monotonic()
        while time.monotonic() - still < 1.5:  # taken up by the queues on the way, and no further
            taken = bridge.send(big.slice(sent, min(100, n - sent)), sent)
            sent, still = sent + taken, time.monotonic() if taken else still
            bridge.poll(0.01)
        assert 0 < sent < n, "held"
        os.kill(pid, signal.SIGCONT)
        while sent < n:
            sent += bridge.send(big.slice(sent, min(100, n - sent)), sent)
            assert not bridge.poll(0.01).refusals
        bridge.close()
        assert pipe.poll(120)
        assert pipe.recv() == list(range(n))


def test_a_reader_that_stays_stopped_is_given_up_after_the_timeout() -> None:
    n = 2_000
    big, sent, refused = large(n), 0, list[Refusals]()
    with stopped_reader(n, full_timeout=0.3, linger=0.2) as (bridge, _, _):
        while sent < n:
            sent += bridge.send(big.slice(sent, min(100, n - sent)), sent)
            refused += bridge.poll(0.01).refusals
    assert {r.error.status for r in refused} == {"QUEUE_FULL"}
    assert "a reader took nothing for 0.3 s (waitTimeout)" in refused[0].error.info
    assert refused[-1].tokens[-1] == n - 1


def test_only_what_was_written_to_a_reader_is_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    n, port = 1_000, lasting_port()
    big = large(n)  # more than the system takes
    settings = replace(PeerSettings.from_urls([f"oz://127.0.0.1:{port}?mode=direct&bind=true"]), linger=0.1)
    bridge = OpenMamaBridge(OpenMamaSettings(settings.without_receiving(), wait_for_subscribers=60.0))
    finished: list[FlightBatch] = []
    policy = WindowConfig(4096, 2048, wait_timeout=0.2, ack_timeout=1.0)
    patient = replace(policy, ack_timeout=60.0)
    publisher = BatchPublisher(bridge, patient, on_finished=finished.append, config=BatchConfig(OnOutage.FAIL_ROWS))
    with SlowReader(port, "A") as reader:
        bridge.open()
        publisher.start()
        publisher.put(batch(10))
        eventually(lambda: finished, "the first ones are written")
        publisher.window.policy = policy
        publisher.put(big)
        publisher.drain()
        assert [set(flights.state.tolist()) for flights in finished] == [{FlightState.ACKED}, {FlightState.TIMEOUT}]
        assert "a reader takes nothing" in caplog.text
        bridge.close()
        assert "not everything was written within 0.1 s: a reader takes nothing" in caplog.text
        got = reader.messages(10 + n, 1.0)
    assert 10 < len(got) < 10 + n, "what the system had taken of them arrives"


@pytest.mark.spec("OW9")
def test_numbers_count_for_each_topic_and_a_task_that_waited_loses_nothing_and_keeps_the_order() -> None:
    with naming() as server, peer(url_of(server)) as reader:
        reader.subscribe("A")
        reader.subscribe("B")
        rows = MessageBatch.of(["A", "B", "A"] * 100, [message(MdSeqNum=99)] * 300)
        task = threading.Thread(target=drained, args=(url_of(server), rows),
                                kwargs={"wait_for_subscribers": 60.0, "numbers": True}, daemon=True)  # fmt: skip
        task.start()
        watched = Watched(reader)
        watched.until(lambda: len(watched.of(reader).frames) == 300, "all arrive")
        task.join(60)
        got = [(f.frame.topic, decode(f.frame.payload)) for f in watched.of(reader).frames]
        assert [m.get("MdSeqNum") for topic, m in got if topic == "A"] == list(range(1, 201))
        assert [m.get("MdSeqNum") for topic, m in got if topic == "B"] == list(range(1, 101))
        assert len({m.get("MamaSenderId") for _, m in got}) == 1


@pytest.mark.spec("OW13")
def test_requests_and_replies_through_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request is lost on its way, as if our subscription to the inbox came too late: it is sent again."""
    monkeypatch.setattr("mama_spark.openmama.bridge.requests.AGAIN", 0.05)
    with naming() as server:
        one, two = (OpenMamaBridge(OpenMamaSettings(PeerSettings.from_urls([url_of(server)]), wait_for_subscribers=t))
                    for t in (60.0, 0.5))  # fmt: skip
        one.open()
        two.open()
        try:
            asking, answering = one.requests(), two.requests()
            answering.listen("Q")
            eventually(lambda: [b.poll(0.01) for b in (one, two)] and one.peer.wanted("Q"), "the listener is there")
            asking.request("Q", message(n=1), 7)
            got: list[Any] = []
            addresses: list[str] = []

            def exchange() -> bool:
                one.poll(0.01)
                two.poll(0.01)
                for request in answering.received():
                    assert request.reply_to is not None
                    addresses.append(request.reply_to)
                    if len(addresses) > 1:
                        answering.reply(request.reply_to, message(n=2))
                got.extend(asking.received())
                return bool(got)

            eventually(exchange, "the reply arrives")
            assert [(m.topic, m.inbox, decode(m.payload).get("n")) for m in got] == [("Q", 7, 2)]
            assert len(set(addresses)) == 1, "the same inbox"
            asking.forget(7)
            answering.request("nobody.there", message(n=1), 8)
            got = eventually(lambda: [two.poll(0.01), answering.received()][1], "the request fails")
            assert got[0].error.status == "PUBLISH_ERROR_NO_RESPONDERS"
        finally:
            one.close()
            two.close()

"""Events of a transport: its connection, full queues, restarts and forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.bridge import EventStyle
from mama_spark.contracts.errors import Unavailable
from mama_spark.mama import Publisher, Queue, Status, Transport, TransportEvent, TransportTopicEvent
from mama_spark.mama.messages.omnm import encode
from mama_spark.nats import attach
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import CallbackRecorder, MemoryMamaHarness, a_message, dispatch, fails, published
from tests.support.nats.nats_servers import Admin
from tests.support.publisher_harness import NatsPublisherHarness


def test_a_full_queue_is_told_at_the_send_and_loses_nothing(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    queue = Queue(max_events=3)
    publisher = published(memory, memory.transport(), recorder, queue=queue)
    for i in range(3):
        publisher.send(a_message(i))
    fails(Status.QUEUE_FULL, publisher.send, a_message())
    until(lambda: queue.get_event_count() == 3)
    dispatch(queue)
    assert recorder.count("success") == 3
    publisher.send(a_message())
    publisher.destroy()
    assert recorder.count("success") == 4
    assert len(memory.held()) == 4


def test_sends_wait_for_a_transport_that_takes_nothing_and_give_up_in_time(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    transport = memory.transport()
    publisher = published(memory, transport, recorder)
    memory.broker.then(["full"])
    publisher.send(a_message(1))
    memory.broker.up, patience = False, transport.loop._call_timeout
    transport.loop._call_timeout = 0.2
    fails(Status.TIMEOUT, publisher.send, a_message(2), match=r"accepted no message for 0\.2 s")
    memory.broker.up, transport.loop._call_timeout = True, patience
    publisher.send(a_message(3))
    publisher.destroy()
    assert [m.payload for m in memory.held()] == [encode(a_message(1)), encode(a_message(3))]


def test_the_transport_tells_what_happens_to_its_connection(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    transport, heard = memory.transport(), list[tuple[str, Any]]()
    transport.set_transport_callback(lambda t, event, info, closure: heard.append((event.name, closure)), "mine")
    publisher = published(memory, transport, recorder)
    memory.broker.then(["disconnect", "ack", "kill"])
    for i in range(3):
        publisher.send(a_message(i))
    until(lambda: len(heard) == 4)
    assert [e for e, _ in heard] == ["DISCONNECT", "RECONNECT", "DISCONNECT", "CONNECT_FAILED"]
    assert {closure for _, closure in heard} == {"mine"}
    fails(Status.PLATFORM, publisher.send, a_message(), match="closed the connection")
    assert TransportEvent.CONNECT.name == "CONNECT"
    until(lambda: recorder.count("error") == 2)


def test_a_server_that_restarts_is_told_and_publishing_goes_on(tmp_path: Path, recorder: CallbackRecorder) -> None:
    server = NatsServer(tmp_path / "nats").start()
    with Admin(server.url) as admin:
        admin.create_stream("T", ["t.>"])
        transport, events = Transport.create("pub", server.url, call_timeout=60, destroy_timeout=60), list[str]()
        transport.set_transport_callback(lambda t, event, info, closure: events.append(event.name))
        publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, recorder.callbacks())
        publisher.send(a_message(1))
        until(lambda: recorder.count("success") == 1)
        server.stop()
        until(lambda: events == ["DISCONNECT"])
        server.start()
        publisher.send(a_message(2))  # waits until the transport takes it
        publisher.destroy()
        until(lambda: events == ["DISCONNECT", "RECONNECT"])
        assert recorder.counters == (1, 0, 2, 1)
        assert [m.payload for m in admin.messages("T")] == [encode(a_message(i)) for i in (1, 2)]
        transport.destroy()
    server.stop()


def test_a_live_jetstream_context_is_a_transport(nats_server: NatsServer, recorder: CallbackRecorder) -> None:
    desk = NatsPublisherHarness(nats_server)
    try:
        with Transport.create("pub", attach(desk.target(), desk.loop.loop, desk.client)) as transport:
            publisher = Publisher.create_with_callbacks(transport, None, "x", "t", None, recorder.callbacks())
            publisher.send(a_message())
            publisher.destroy()
            assert recorder.counters == (1, 0, 1, 1)
        assert desk.payloads() == [encode(a_message())]
    finally:
        desk.close()


def test_a_fork_is_told_that_the_transport_is_not_its_own() -> None:
    script = """
import os
from mama_spark.mama import Publisher, Transport
publisher = Publisher.create(Transport.create('pub', 'memory://forked'), 'x')
if os.fork():
    os.wait()
else:
    publisher.send(b'O')
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "made in another process" in done.stderr


def test_a_transport_that_cannot_connect_says_so(memory: MemoryMamaHarness) -> None:
    memory.broker.up = False
    with pytest.raises(Unavailable, match="down"):
        Transport.create("pub", memory.bridge())


def test_callbacks_of_the_transport_come_on_its_queue_if_it_has_one_and_what_finds_it_full_is_logged(
    recorder: CallbackRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    on, queue = MemoryMamaHarness(EventStyle.TRANSPORT), Queue("transport", max_events=1)
    transport = on.transport()
    transport.set_transport_topic_callback(lambda *args: [][0])
    published(on, transport, recorder)
    assert transport.callback_errors == 1
    assert "IndexError" in caplog.text, "one that raises is counted"
    transport.set_transport_callback_queue(queue)
    transport.set_transport_topic_callback(recorder.on_topic)
    published(on, transport, recorder)
    until(queue.get_event_count)
    transport.report_topic_event(TransportTopicEvent.PUBLISH_CREATE, "another", "made")
    assert "is lost: QUEUE_FULL" in caplog.text
    assert recorder.topics == []
    dispatch(queue)
    assert [event.name for event, _, _ in recorder.topics] == ["PUBLISH_CREATE"]
    on.close()

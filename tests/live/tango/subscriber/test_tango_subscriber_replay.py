"""Subscriber with a publisher on real sockets: hostile frames, a lost connection, connecting again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
import zmq
from mama_spark.tango.client.event_dispatcher import EventDispatcher
from mama_spark.tango.client.event_queue import EventQueue
from mama_spark.tango.client.subscription_events import SubscriptionEvent, decode_events
from mama_spark.tango.client.zmq_event_receiver import ZmqEventReceiver
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.events.event_codec import heartbeat, usual_call
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.types import EventType
from mama_spark.testing.waiting import until

BEATS = ("tango://h:1/dserver/d/i.heartbeat", "tango://h:1/dserver/d/i#dbase=no.heartbeat")


@dataclasses.dataclass(eq=False)
class Receiver:
    """A dispatcher with one target for all topics."""

    queue: EventQueue = dataclasses.field(default_factory=lambda: EventQueue(0))
    dispatcher: EventDispatcher = dataclasses.field(default_factory=EventDispatcher)
    beats: set[bytes] = dataclasses.field(default_factory=set)
    lost: list[str] = dataclasses.field(default_factory=list)
    death: BaseException | None = None

    def on_events(self, messages: Sequence[Sequence[bytes]], received: int) -> None:
        self.queue.put(self.dispatcher.dispatch(messages, received))

    def on_heartbeats(self, topics: set[bytes]) -> None:
        self.beats |= topics

    def on_disconnected(self, heartbeat: str) -> None:
        self.lost.append(heartbeat)

    def on_death(self, error: BaseException) -> None:
        self.death = error


class Publisher:
    """A PUB for both channels, which Channels is connected to."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.pair = EndpointPair(self.endpoint, self.endpoint)
        self.receiver = Receiver()
        self.channels = ZmqEventReceiver(self.receiver, hwm=10**6)

    def start(self, topics: list[bytes]) -> None:
        """Returns when every topic comes through."""
        self.channels.start()
        self.channels.connect(self.pair, BEATS, 10**6)
        for topic in topics:
            self.receiver.dispatcher.add(topic, EventType.CHANGE, self.receiver)
            self.channels.subscribe(topic)
        until(lambda: self.receiver.beats, lambda: self.socket.send_multipart(heartbeat(BEATS[1].encode())))
        assert self.channels.wait(60)
        probe = b"tango://h:1/a/b/c/probe.change"
        self.channels.subscribe(probe)  # behind all others
        until(
            lambda: self.receiver.dispatcher.counts.unrouted, lambda: self.socket.send_multipart([probe, b"", b"", b""])
        )


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with zmq.Context() as context:
        found = Publisher(context)
        yield found
        found.channels.close()
        found.socket.close()


def events_of(publisher: Publisher, count: int) -> list[SubscriptionEvent]:
    found: list[SubscriptionEvent] = []
    until(lambda: len(found) >= count, lambda: found.extend(publisher.receiver.queue.take(10**6, 1.0)))
    return found


@pytest.mark.spec("TG-45")
def test_hostile_messages_end_nothing(publisher: Publisher) -> None:
    topic = b"tango://h:1/a/b/c/d.idl5_change"
    publisher.start([topic])
    hostile: list[list[bytes]] = [
        [topic], [topic, b""], [topic, b"\1", b""], [topic, b"\1", b"\0" * 7, b""], [topic] * 500,
        [topic, b"\1", b"\xff" * 21, b"\xff" * 100_000], [b"I like beer"], [BEATS[0].encode()],
    ]  # fmt: skip
    for message in hostile:
        publisher.socket.send_multipart(message)
    publisher.socket.send_multipart((topic, b"\1", usual_call(0), b"\xc0\xde\xc0\xde"))
    events = events_of(publisher, 2)
    batch = decode_events([n for n in events if n.frames], BatchDecoder())
    assert len(batch.columns.bad) == 2  # told to who decodes: with its number, it may be part of a gap
    assert publisher.receiver.death is None
    assert publisher.receiver.dispatcher.counts.malformed == 5


def test_disconnecting_and_connecting_again_reports_no_lost_connection(publisher: Publisher) -> None:
    publisher.start([b"tango://h:1/a/b/c/d.idl5_change"])
    publisher.channels.connect(publisher.pair, BEATS, 1000)
    assert publisher.channels.wait(60)
    publisher.receiver.beats.clear()
    until(lambda: publisher.receiver.beats, lambda: publisher.socket.send_multipart(heartbeat(BEATS[0].encode())))
    assert publisher.receiver.lost == []


@pytest.mark.spec("TG-41")
def test_a_lost_connection_is_reported(publisher: Publisher) -> None:
    publisher.start([b"tango://h:1/a/b/c/d.idl5_change"])
    publisher.socket.close()
    until(lambda: publisher.receiver.lost)
    assert set(publisher.receiver.lost) == {publisher.endpoint}
    publisher.channels.disconnect(publisher.pair, BEATS)
    assert publisher.channels.wait(60)
    assert publisher.receiver.death is None

"""Peers on loopback that find each other by a name server, or directly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EMFILE

import pytest
import zmq
from mama_spark.contracts.errors import ConfigError, PublishError
from mama_spark.openmama.wire import sockets
from mama_spark.openmama.wire.frames import OZ, BridgeFrame, FrameType
from mama_spark.openmama.wire.peer import JoinTimeout, OpenMamaPeer
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.openmama.wire.sockets import _PORTION, make_socket, receive_single

from tests.support.openmama.network import Watched, message, naming, peer, url_of
from tests.support.ports import lasting_port

TEN = [message(n=n) for n in range(10)]


@contextmanager
def subscribed(topic: str) -> Iterator[tuple[OpenMamaPeer, OpenMamaPeer, Watched]]:
    """Two peers, the first of which knows what the second wants."""
    with naming() as server, peer(url_of(server)) as one, peer(url_of(server)) as two:
        both = Watched(one, two)
        two.subscribe(topic)
        both.until(lambda: one.wanted(topic), "the subscription arrives")
        yield one, two, both


@pytest.mark.spec("OW12")
def test_messages_of_a_neighbour_of_the_topic_are_not_delivered() -> None:
    with subscribed("FOO") as (one, two, both):
        assert not one.wanted("FOOBAR")
        assert two._in is not None
        two._in.subscribe(b"FOO")  # as real programs subscribe
        both.until(lambda: one.wanted("FOOBAR"), "the other subscription arrives")
        one.publish("FOOBAR", TEN[0])
        one.publish("FOO", TEN[1])
        both.until(lambda: both.of(two).frames, "the message arrives")
        assert [f.frame.topic for f in both.of(two).frames] == ["FOO"]
        assert two.counters.neighbours == 1


@pytest.mark.spec("OW13", "OW14")
def test_a_request_is_answered_as_often_as_the_other_likes_until_it_is_forgotten() -> None:
    with subscribed("Q") as (one, two, both):
        first, second = one.request("Q", TEN[0]), one.request("Q", TEN[1])
        both.until(lambda: len(both.of(two).frames) == 2, "the requests arrive")
        for got in both.of(two).frames:
            for answer in TEN[2:5]:
                two.reply(got.frame, answer)
        both.until(lambda: len(both.of(one).frames) == 6, "the replies arrive")
        assert [(f.inbox, f.frame.payload) for f in both.of(one).frames] == [
            (number, answer) for number in (first, second) for answer in TEN[2:5]
        ]
        one.forget(first)
        two.reply(both.of(two).frames[0].frame, TEN[5])
        two.reply(both.of(two).frames[1].frame, TEN[6])
        both.until(lambda: len(both.of(one).frames) == 7, "the other reply arrives")
        assert (both.of(one).frames[-1].frame.payload, one.counters.unknown_inbox) == (TEN[6], 1)


@pytest.mark.spec("OW15")
def test_a_request_over_zmq_needs_a_word_that_the_others_survive_it() -> None:
    port, back = lasting_port(), lasting_port()
    urls = (f"zmq://127.0.0.1:{port}?bind=true&incoming=tcp://127.0.0.1:{back}",)
    with peer(*urls) as one, pytest.raises(ConfigError, match="allow_requests=true"):
        one.request("Q", TEN[0])


def test_requests_over_zmq_have_an_inbox_each() -> None:
    port, back = lasting_port(), lasting_port()
    settings = PeerSettings.from_urls([f"zmq://127.0.0.1:{port}?incoming=tcp://127.0.0.1:{back}"])
    with (
        peer(f"zmq://127.0.0.1:{port}?bind=true&incoming=tcp://127.0.0.1:{back}", allow_requests=True,
             incoming=(settings.incoming[0]._replace(bind=True),)) as one,
        peer(f"zmq://127.0.0.1:{port}?incoming=tcp://127.0.0.1:{back}", receiver=True) as two,
    ):  # fmt: skip
        both = Watched(one, two)
        two.subscribe("Q")
        both.until(lambda: one.wanted("Q"), "the subscription arrives")
        numbers = [one.request("Q", TEN[0]), one.request("Q", TEN[1])]
        both.until(lambda: len(both.of(two).frames) == 2, "the requests arrive")
        assert len({f.frame.address for f in both.of(two).frames}) == 2
        for got in both.of(two).frames:
            two.reply(got.frame, got.frame.payload, "the.topic")
        both.until(lambda: len(both.of(one).frames) == 2, "the replies arrive")
        assert [(f.inbox, f.frame.payload, f.frame.address) for f in both.of(one).frames] == [
            (numbers[0], TEN[0], "the.topic"), (numbers[1], TEN[1], "the.topic")
        ]  # fmt: skip
        one.forget(numbers[0])
        both.until(lambda: two.readers.readers(b"") == 0 and len(two.readers) == 1, "its subscription ends")


@pytest.mark.spec("OW24")
def test_without_a_name_server_joining_fails_and_names_its_address() -> None:
    port = lasting_port()
    lone = OpenMamaPeer(PeerSettings(OZ, (f"tcp://127.0.0.1:{port}",), join_timeout=0.3))
    with pytest.raises(JoinTimeout, match=f"no name server answered at tcp://127.0.0.1:{port} within 0.3 s"):
        lone.open()
    assert "closed" in repr(lone)


def test_a_peer_that_has_too_few_sockets_to_join_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = list[zmq.Context[sockets.Socket]]()

    def too_few(context: zmq.Context[sockets.Socket], kind: int, *rest: int) -> sockets.Socket:
        contexts.append(context)
        if kind == zmq.PUB:
            raise zmq.ZMQError(EMFILE)
        return make_socket(context, kind, *rest)

    monkeypatch.setattr(sockets, "make_socket", too_few)
    with pytest.raises(zmq.ZMQError) as caught:
        OpenMamaPeer(PeerSettings(OZ, ("tcp://127.0.0.1:1",))).open()
    assert caught.value.__traceback__ is not None, "what is not closed lives as long as the error"
    assert [context.closed for context in contexts] == [True] * 3


@pytest.mark.spec("OW24")
def test_a_peer_that_waits_for_its_name_server_joins_when_it_comes() -> None:
    with naming() as server:
        port = server.address.rpartition(":")[2]
    with naming(int(port)) as server, peer(url_of(server), join_timeout=60.0) as one:
        assert one.naming is not None
        assert one.naming.joined


@pytest.mark.spec("OW27")
def test_a_name_server_that_is_started_again_is_found_again() -> None:
    port = lasting_port()
    with naming(port) as server:
        one, two = (OpenMamaPeer(PeerSettings.from_urls([url_of(server)])) for _ in range(2))
        one.open()
        two.open()
        both = Watched(one, two)
        two.subscribe("A")
        both.until(lambda: one.wanted("A"), "the subscription arrives")
    try:
        one.publish("A", TEN[0])
        both.until(lambda: len(both.of(two).frames) == 1, "data goes on without a name server")
        with naming(port) as again, peer(url_of(again)) as three:
            all_ = Watched(one, two, three)
            three.subscribe("A")
            all_.until(lambda: one.readers.readers(b"A\0") == 2, "who was there before hears of who comes now")
            one.publish("A", TEN[1])
            all_.until(lambda: all_.of(two).frames and all_.of(three).frames, "both get the message")
            assert one.naming is not None
            assert one.naming.peers.keys() == {two.uuid, three.uuid}
    finally:
        one.close()
        two.close()


@pytest.mark.spec("OW25")
def test_each_start_has_a_uuid_and_a_port_of_its_own() -> None:
    with naming() as server, peer(url_of(server)) as one, peer(url_of(server)) as two:
        assert len({one.uuid, one.endpoint, two.uuid, two.endpoint}) == 4


@pytest.mark.spec("OW5", "OW7")
def test_what_is_no_message_is_counted_and_nothing_else_happens(caplog: pytest.LogCaptureFixture) -> None:
    port = lasting_port()
    context = zmq.Context[zmq.Socket[bytes]]()
    sender = context.socket(zmq.PUB)
    sender.bind(f"tcp://127.0.0.1:{port}")
    good = OZ.encode(BridgeFrame(FrameType.PUBLISH, "A", TEN[0]))
    foreign = OZ.encode(BridgeFrame(FrameType.PUBLISH, "A", b"Q\0"))
    try:
        with peer(f"oz://127.0.0.1:{port}?mode=direct", receiver=True) as one:
            one.subscribe("A", prefix=True)
            watched = Watched(one)

            def send() -> bool:
                for parts in ([b"A"], [b"A\0\x09\0O"], [b"A\0\1", b"\0O\1\0"], [good], [foreign]):
                    sender.send_multipart(parts)
                return len(watched.of(one).frames) >= 2

            with caplog.at_level(logging.WARNING):
                watched.until(send, "the good message arrives")
            counters = one.counters
            assert counters.malformed >= 2
            assert counters.multipart >= 1
            assert caplog.text.count("mama.payload.default=omnmmsg") == 1
    finally:
        sender.close(0)
        context.term()


@pytest.mark.spec("OW5")
@pytest.mark.parametrize("place", [0, _PORTION - 2, _PORTION - 1, _PORTION, 2 * _PORTION - 1, 3 * _PORTION])
def test_a_message_of_several_parts_is_dropped_wherever_it_stands(place: int) -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.set_hwm(0)
    theirs.set_hwm(0)
    ours.bind("inproc://messages")
    theirs.connect("inproc://messages")
    single = [b"%d" % n for n in range(3 * _PORTION)]
    try:
        for data in single[:place]:
            theirs.send(data)
        theirs.send_multipart([b"first", b"second", b"third"])
        for data in single[place:]:
            theirs.send(data)
        got, others = receive_single(ours, place + 1)
        assert (got, others) == (single[:place], 1), "no more than one asks for, and the last message whole"
        assert receive_single(ours, 4 * _PORTION) == (single[place:], 0)
    finally:
        context.destroy(linger=0)


def test_topics_of_openmama_itself_and_beyond_its_limit_are_refused() -> None:
    with naming() as server, peer(url_of(server)) as one:
        for topic in ("_INBOX.x", "_NAMING", "a" * 256, "a b", ""):
            with pytest.raises(PublishError, match="BAD_SYMBOL"):
                one.publish(topic, TEN[0])


def test_a_peer_that_only_sends_says_so() -> None:
    with naming() as server:
        lone = OpenMamaPeer(PeerSettings.from_urls([url_of(server)]).without_receiving())
        lone.open()
        with pytest.raises(ConfigError, match="without a receiving socket"):
            lone.subscribe("A")
        with pytest.raises(ConfigError, match="without a receiving socket"):
            lone.request("A", TEN[0])
        lone.close()
        lone.close()

"""The client's side of a connection without I/O: subscriptions, messages, and what a new connection is told."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import TooLarge
from mama_spark.nats.protocol.client import State
from mama_spark.nats.protocol.client_events import Complaint, Connected, Denied, InfoChanged, Write

from tests.support.nats.client_protocol import INFO, LOGIN, ODD, PONG, info, made


def test_subscriptions_are_made_again_at_the_next_connection() -> None:
    client = made(State.LOST)
    one, nothing = client.send_subscribe("before")
    assert nothing == b""
    client.connect(0.0, lambda _: LOGIN)
    client.receive(INFO)
    assert client.receive(PONG) == [Write(b"SUB before 1\r\n"), Connected(client.info)]
    two, now = client.send_subscribe("b.>")
    assert (one, two, now) == (1, 2, b"SUB b.> 2\r\n")
    assert client.send_unsubscribe(one) == b"UNSUB 1\r\n"
    assert client.send_unsubscribe(one) == b""
    client.closed("x")
    client.connect(0.0, lambda _: LOGIN)
    client.receive(INFO)
    assert client.receive(PONG)[0] == Write(b"SUB b.> 2\r\n")


def test_a_subscription_too_many_is_the_last_one_that_was_made_and_not_made_again() -> None:
    client = made(State.UP)
    for subject in ("inbox", "b", "c"):
        client.send_subscribe(subject)
    assert client.receive(ODD * 3)[1::2] == [Denied("limit", "c"), Denied("limit", "b")], "one is always taken"
    assert client.send_unsubscribe(3) == b""
    client.closed("x")
    client.connect(0.0, lambda _: LOGIN)
    assert client.receive(INFO + PONG)[1] == Write(b"SUB inbox 1\r\n")


def test_the_servers_of_the_cluster_are_told() -> None:
    (changed,) = made(State.UP).receive(info(connect_urls=["a:4222", "[::1]:4222"]))
    assert isinstance(changed, InfoChanged)
    assert changed.info.connect_urls == ("a:4222", "[::1]:4222")
    assert changed.info.version_numbers == (2, 11)


def test_a_message_is_one_frame_and_not_larger_than_the_server_takes() -> None:
    client = made(State.UP)
    assert client.send_message("a.b", b"xy", b"re") == b"PUB a.b re 2\r\nxy\r\n"
    assert client.send_message("a", b"", headers={"K": "v"}) == b"HPUB a 18 18\r\nNATS/1.0\r\nK: v\r\n\r\n\r\n"
    client.receive(info(max_payload=20))
    client.send_message("a", bytes(20))
    client.send_message("a", bytes(2), headers={"K": "v"})
    for payload, headers in ((bytes(21), None), (bytes(3), {"K": "v"})):
        with pytest.raises(TooLarge):
            client.send_message("a", payload, headers=headers)


def test_a_subscription_that_was_accepted_or_made_later_is_not_the_one_that_is_too_many() -> None:
    client = made(State.UP)
    for subject in ("inbox", "accepted"):
        client.send_subscribe(subject)
    client.send_ping()
    client.receive(b"PONG\r\n")
    full = b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert [type(event) for event in client.receive(full)] == [Complaint]
    client.send_subscribe("refused")
    client.send_ping()
    client.send_subscribe("later")
    assert client.receive(full)[1:] == [Denied("limit", "refused")]

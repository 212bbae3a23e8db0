"""The naming client, by frames and times: what it announces, whom it connects to, who it says is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.openmama.wire import naming_client
from mama_spark.openmama.wire.naming import BEACON, CONNECT, DISCONNECT, WELCOME, NamingFrame, PeerPresence
from mama_spark.openmama.wire.naming import decode_naming as decode
from mama_spark.openmama.wire.naming import encode_naming as encode
from mama_spark.openmama.wire.naming_client import Announce, Dial, NamingAction, NamingClient, PeerChange

from tests.support.tiers import examples

ME = NamingFrame(CONNECT, "me", "host", 1, "my-uuid", "tcp://127.0.0.1:1000")
OTHER = NamingFrame(CONNECT, "other", "host", 2, "other-uuid", "tcp://127.0.0.1:2000")
SERVER = NamingFrame(WELCOME, "nsd", "host", 3, "", "tcp://127.0.0.1:3000")


def kinds(actions: list[NamingAction]) -> list[str]:
    """Types of announcements."""
    return [decode(a.data).type for a in actions if isinstance(a, Announce)]


def others(actions: list[NamingAction]) -> list[NamingAction]:
    return [a for a in actions if not isinstance(a, Announce)]


def joined(**more: Any) -> NamingClient:
    client = NamingClient(ME, **more)
    client.received(encode(SERVER), 0.0)
    client.tick(0.0)
    client.received(encode(ME), 0.0)
    assert client.joined
    return client


def test_it_announces_itself_ten_times_a_second_until_its_own_comes_back_then_each_second() -> None:
    client = NamingClient(ME)
    assert kinds(client.tick(0.0)) == [], "nobody listens before the welcome"
    assert others(client.received(encode(SERVER), 1.0)) == [Dial(SERVER.endpoint, sender=True)]
    sent = [(n, kind) for n in range(10) for kind in kinds(client.tick(1.0 + n * 0.0625))]
    assert sent == [(0, CONNECT), (2, CONNECT), (4, CONNECT), (6, CONNECT), (8, CONNECT)]
    assert not client.joined
    client.received(encode(ME), 1.5)
    assert client.joined
    assert [kind for n in range(20) for kind in kinds(client.tick(1.6 + n * 0.1))] == [BEACON, BEACON]
    assert kinds(client.leave()) == [DISCONNECT]


def test_an_unknown_peer_is_connected_once_and_answered() -> None:
    client = joined()
    client.tick(5.0)
    first = client.received(encode(OTHER), 5.1)
    assert others(first) == [Dial(OTHER.endpoint), PeerChange(OTHER, PeerPresence.ONLINE)]
    assert client.received(encode(replace(OTHER, type=BEACON)), 5.2) == []
    assert [k for n in range(4) for k in kinds(client.tick(5.1 + n * 0.05))] == [CONNECT], "one answer, within 0.1 s"


def test_a_peer_that_takes_its_leave_is_disconnected_and_may_come_again_with_another_uuid() -> None:
    client = joined()
    client.received(encode(OTHER), 1.0)
    gone = client.received(encode(replace(OTHER, type=DISCONNECT)), 2.0)
    assert gone == [Dial(OTHER.endpoint, connect=False), PeerChange(OTHER, PeerPresence.OFFLINE, True)]
    assert client.received(encode(replace(OTHER, type=DISCONNECT)), 2.0) == []
    again = replace(OTHER, uuid="another")
    assert Dial(OTHER.endpoint) in client.received(encode(again), 3.0)


@pytest.mark.spec("OW25")
def test_a_peer_that_crashed_and_comes_back_at_once_is_another_peer() -> None:
    client = joined()
    client.received(encode(OTHER), 1.0)
    back = replace(OTHER, uuid="new", endpoint="tcp://127.0.0.1:2001")
    assert others(client.received(encode(back), 1.1))[0] == Dial(back.endpoint)
    assert len(client.peers) == 2
    same_port = replace(OTHER, uuid="third")
    assert others(client.received(encode(same_port), 1.2)) == [PeerChange(same_port, PeerPresence.ONLINE)]
    late = client.received(encode(replace(OTHER, type=DISCONNECT)), 1.3)
    assert others(late) == [PeerChange(OTHER, PeerPresence.OFFLINE, True)], "another peer lives at that endpoint"


@pytest.mark.spec("OW31")
def test_a_silent_peer_turns_suspect_after_five_beacons_and_offline_after_fifteen() -> None:
    client = joined()
    client.received(encode(OTHER), 0.0)
    seen = [(t, a.presence) for t in range(20) for a in client.tick(float(t)) if isinstance(a, PeerChange)]
    assert seen == [(5, PeerPresence.SUSPECT), (15, PeerPresence.OFFLINE)]
    assert client.received(encode(OTHER), 21.0) == [PeerChange(OTHER, PeerPresence.ONLINE)], "not connected again"
    assert [a for t in range(22, 5000) for a in others(client.tick(float(t)))][-1] == Dial(
        OTHER.endpoint, connect=False
    )
    assert client.peers == {}


@pytest.mark.spec("OW27")
def test_a_restarted_name_server_is_followed_to_its_new_address() -> None:
    client = joined()
    moved = replace(SERVER, endpoint="tcp://127.0.0.1:3001")
    assert client.received(encode(moved), 9.0) == [
        Dial(SERVER.endpoint, sender=True, connect=False),
        Dial(moved.endpoint, sender=True),
    ]
    assert kinds(client.tick(9.0)) == [CONNECT]
    assert client.received(encode(moved), 9.1) == [], "the same server again"


def test_two_name_servers_are_both_announced_to() -> None:
    client = joined(servers=2)
    second = replace(SERVER, endpoint="tcp://127.0.0.1:3001")
    assert client.received(encode(second), 1.0) == [Dial(second.endpoint, sender=True)]


@pytest.mark.spec("OW3")
def test_frames_of_other_lengths_and_content_change_nothing() -> None:
    client = joined()
    for data in (b"", b"_NAMING\0", encode(OTHER)[:-1], encode(OTHER) + b"\0"):
        assert client.received(data, 1.0) == []
    for data in (bytes(882), encode(replace(OTHER, endpoint="inproc://x")),
                 encode(replace(SERVER, endpoint="ipc://x"))):  # fmt: skip
        assert client.received(data, 1.0) == []
    assert client.peers == {}


def test_the_number_of_peers_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming_client, "MAX_PEERS", 3)
    client = joined()
    for n in range(10):
        client.received(encode(replace(OTHER, uuid=f"u{n}")), 1.0)
    assert len(client.peers) == 3


@examples(500)
@given(st.lists(st.tuples(st.sampled_from("WCcD"), st.integers(0, 3), st.integers(0, 3), st.floats(0, 20))))
def test_whatever_comes_each_connected_endpoint_is_connected_once(steps: list[tuple[str, int, int, float]]) -> None:
    client, now, connected = NamingClient(ME), 0.0, set()
    for kind, uuid, port, pause in steps:
        now += pause
        frame = NamingFrame(kind, "p", "h", 1, f"u{uuid}" if uuid else ME.uuid, f"tcp://h:{port}")
        for action in [*client.received(encode(frame), now), *client.tick(now)]:
            if not isinstance(action, Dial) or action.sender:
                continue
            if action.connect:
                assert action.endpoint not in connected
                connected.add(action.endpoint)
            else:
                connected.remove(action.endpoint)
        assert connected == {p.frame.endpoint for p in client.peers.values()}

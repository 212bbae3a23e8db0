"""The broker over TCP: recorded conversations, what is listed, and large messages."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.malamute.protocol import commands as wire

from tests.support.malamute.raw_malamute_clients import OURS, SCENARIOS, Make, RawClient


@pytest.mark.spec("ML-25")
@pytest.mark.parametrize("vector", SCENARIOS, ids=lambda v: v["name"])
def test_recorded_conversations_over_tcp(make: Make, vector: dict[str, Any]) -> None:
    """Byte for byte but for leftover reasons, and one copy a client: see the tests of the machine."""
    site = make(timeout=60.0)
    peers: dict[str, RawClient] = {}
    skipped = 0
    for step in vector["steps"]:
        peer = peers.setdefault(step["client"], site.peer() if step["client"] not in peers else peers[step["client"]])
        frames = [bytes.fromhex(OURS.get(h, h)) for h in step["hex"]]
        if step["dir"] == "C>S":
            peer.socket.send_multipart(frames)
        elif step["dir"] == "none":
            site.until_nobody_is_left()
        elif vector["name"] == "scenario_duplicate_patterns" and frames[1:] == [b"1"] and not skipped:
            skipped += 1
        else:
            assert peer.frames() == frames
    for peer in peers.values():
        assert not peer.socket.poll(50), "and nothing more"


@pytest.mark.spec("S3", "S4")
def test_clients_and_streams_are_listed(make: Make) -> None:
    site = make()
    peers = {name: site.peer(name) for name in (b"a", b"b", b"c")}
    site.peer(b"")
    assert site.broker.clients() == [b"a", b"b", b"c"]
    peers[b"a"].ask(wire.StreamWrite(b"one"), wire.StreamRead(b"two", b""), wire.StreamRead(b"one", b""))
    assert site.broker.streams() == [b"one", b"two"]
    peers[b"a"].send(wire.Close())
    peers[b"a"].get()
    peers[b"b"].ask(wire.StreamWrite(b"three"))
    assert site.broker.clients() == [b"b", b"c"]
    assert site.broker.streams() == [b"one", b"three", b"two"], "streams survive their producer"
    kinds = [kind for kind, address, *_ in site.events if address == b"a"]
    assert kinds == ["CONNECTED", "WRITING", *["SUBSCRIBED"] * 2, *["UNSUBSCRIBED"] * 2, "STOPPED", "GONE"]
    assert repr(site.broker).startswith(f"<Broker {site.broker.endpoint} <ServerMachine 3 clients, 3 streams")


@pytest.mark.spec("C13", "C14")
def test_a_writer_that_is_gone_right_after_sending_is_heard(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.send(wire.StreamWrite(b"st"), *[wire.StreamSend(b"%d" % n, [b"x"]) for n in range(100)], wire.Close())
    got = reader.get(100)
    assert [d.subject for d in got if isinstance(d, wire.StreamDeliver)] == [b"%d" % n for n in range(100)]


def test_large_messages_and_many_frames_pass(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    bodies = [[b"x" * 5_000_000], [b"y"] * 300, [b""], []]
    writer.send(wire.StreamWrite(b"st"), *[wire.StreamSend(b"s", body) for body in bodies])
    assert [list(d.content) for d in reader.get(4) if isinstance(d, wire.StreamDeliver)] == bodies

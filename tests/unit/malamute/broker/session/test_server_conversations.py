"""The broker's side of MLP: recorded conversations byte for byte, bad input, and commands out of turn."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, decode

from tests.support.malamute.session_machine import OK, PONG, MachineHarness
from tests.support.tables import each
from tests.support.vectors import vectors

VECTORS = vectors("malamute")


def scenarios() -> list[Any]:
    return [pytest.param(v, id=v["name"]) for v in VECTORS if v["kind"] == "scenario"]


#: A conversation with leftovers of the reference in it -> what ours says in their place.
OURS = {
    "aaa80f012c024f4b": "aaa80f012c00",  # the reason is leftover text there
    "aaa80f01f4024f4b": "aaa80f01f400",
}


@pytest.mark.spec("ML-25")
@each("vector", scenarios())
def test_recorded_conversations_byte_for_byte(vector: dict[str, Any]) -> None:
    """Replies of one client in the order given; those to different clients may interleave.

    Ours differs twice. The reason of an error after CONFIRM is empty, where the reference repeats what lay in memory.
    And a client with two matching patterns gets one copy, where the reference sends one a pattern."""
    desk = MachineHarness(timeout=1.0)
    expected: dict[str, list[list[str]]] = {}
    for step in vector["steps"]:
        if step["dir"] == "C>S":
            desk.feed(step["client"], [bytes.fromhex(h) for h in step["hex"]])
        elif step["dir"] == "none":
            desk.expire(1.6)
        else:
            expected.setdefault(step["client"], []).append([OURS.get(h, h) for h in step["hex"]])
    if vector["name"] == "scenario_duplicate_patterns":
        assert expected["r"].count(expected["r"][4]) == 2
        del expected["r"][4]
    received = {client.decode(): [[f.hex() for f in one] for one in all_] for client, all_ in desk.received.items()}
    assert received == expected


BAD = [v for v in VECTORS if v["kind"] == "bad"]


@each("vector", BAD)
@each("state", ["start", "connected"])
def test_bad_input_is_answered_as_it_may_be_and_disturbs_nobody(vector: dict[str, Any], state: str) -> None:
    desk = MachineHarness()
    desk.open("other")
    if state == "connected":
        desk.open("a")
    desk.feed("a", [bytes.fromhex(h) for h in vector["hex"]])
    replies = [[f.hex() for f in one] for one in desk.received.pop(b"a", [])]
    if state == vector.get("state", state):
        allowed = vector.get("reply_any_of")
        if allowed is not None:
            assert (replies[0] if replies else []) in allowed
        elif vector["layer"] in ("frame", "message"):
            assert replies == []
        else:
            assert isinstance(decode([bytes.fromhex(h) for h in replies[0]]), Error)
    assert desk.send("other", wire.Ping()) == [PONG]
    if "pattern" in vector["name"] and state == "connected":
        assert desk.send("a", wire.Ping()) == [PONG], "the client is kept"
        assert desk.send("a", wire.StreamRead(b"st", b"t"))[0] == OK, "and so is the stream"
    desk.open("fresh")

"""The client's side of MLP: recorded conversations byte for byte, a reconnection among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mama_spark.malamute.client.state_machine import ClientMachine, ClientSettings
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Ok, decode

from tests.support.malamute.client_machine import FAR, connected, do, said, told
from tests.support.tables import each

VECTORS: dict[str, dict[str, Any]] = {
    v["name"]: v for v in json.loads((Path(__file__).parents[3] / "vectors" / "malamute.json").read_text())
}


PROPER = [
    "session_a", "scenario_conversation_streams", "scenario_mailbox_direct", "scenario_service_direct",
    "scenario_duplicate_patterns", "conversation_b_credit_ignored",
]  # fmt: skip


@each("name", PROPER)
def test_recorded_conversations_byte_for_byte(name: str) -> None:
    """Each client says what the C client said; deliveries reach the application in order."""
    machines: dict[str, ClientMachine] = {}
    deliveries: dict[str, list[Command]] = {}
    for step in VECTORS[name]["steps"]:
        frames = [bytes.fromhex(h) for h in step["hex"]]
        command = decode(frames)
        if isinstance(command, wire.Open):
            machines[step["client"]] = ClientMachine(ClientSettings(command.address))
        machine = machines[step["client"]]
        if step["dir"] == "C>S":
            do(machine, command)
            assert machine.out == [frames]
            machine.out.clear()
        else:
            machine.receive(frames, 0.0)
            if command.id in (8, 10, 13):
                deliveries.setdefault(step["client"], []).append(command)
    for client, machine in machines.items():
        assert machine.received == deliveries.get(client, [])
        assert machine.out == []


@pytest.mark.spec("C7")
def test_the_recorded_reconnection_after_a_restart_byte_for_byte() -> None:
    """The queued PING gets ERROR 500; OPEN, then WRITE, READ and OFFER without waiting."""
    machine = connected()
    machine.settings = ClientSettings(b"rc")
    machine.write(b"out", FAR)
    machine.read(b"in", b"^a", FAR)
    machine.offer(b"svc", b"x", FAR)
    told(machine, Ok(), Ok(), Ok())
    said(machine)
    machine.ping(0.0, FAR)
    for step in VECTORS["session_c_broker_restart"]["steps"]:
        frames = [bytes.fromhex(h) for h in step["hex"]]
        if step["dir"] == "C>S":
            assert machine.out.pop(0) == frames
        else:
            machine.receive(frames, 0.0)
    assert machine.out == []
    assert repr(machine) == "<ClientMachine b'rc' connected, 0 calls>"
    assert machine.reconnects == 1

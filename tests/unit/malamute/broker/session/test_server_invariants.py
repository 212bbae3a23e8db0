"""Whatever clients do, the broker's session machine raises nothing, keeps its books, and nothing of who is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mama_spark.malamute.broker.engines.ack_tracker import AckTracker
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.session.settings import LETTER_OVERHEAD, Limits, Overflow
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, Ok, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write

from tests.support.malamute.session_machine import ALL, MachineHarness
from tests.support.tiers import EXPLORE, examples

NAMES = st.sampled_from([b"", b"a", b"b", b"st", b"(", b".*"])


ANY = st.one_of(
    st.builds(wire.Open, NAMES, st.sampled_from([b"", write(Extension(features=ALL)), b"MS\x01"])),
    st.sampled_from([wire.Ping(), wire.Pong(), wire.Close(), Ok(), Error()]),
    st.builds(wire.StreamWrite, NAMES), st.builds(wire.StreamRead, NAMES, NAMES), st.builds(wire.StreamCancel, NAMES),
    st.builds(wire.StreamSend, NAMES, st.just([b"x"]), st.binary(max_size=6)),
    st.builds(wire.MailboxSend, NAMES, NAMES, NAMES, st.integers(0, 3000), st.just([b"x" * 30])),
    st.builds(wire.ServiceSend, NAMES, NAMES, NAMES, st.integers(0, 3000), st.just([b"x" * 30])),
    st.builds(wire.ServiceOffer, NAMES, NAMES), st.builds(wire.Credit, st.integers(0, 3)),
    st.builds(wire.Confirm, NAMES),
)  # fmt: skip


#: Of clients that use streams as they should; without them few examples come as far as an engine.
USUAL = st.sampled_from([wire.Open(b"a"), wire.StreamWrite(b"st"), wire.StreamRead(b"st", b".*"), wire.Ping(),
                         wire.StreamSend(b"a", [b"x"], b"")])  # fmt: skip


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.one_of(USUAL, ANY).map(encode)),
        st.tuples(st.sampled_from("abc"), st.lists(st.binary(max_size=12), max_size=3)),
        st.floats(0, 3),
        st.sampled_from(["block", "unblock", "lost", "obey"]),
    ),
    max_size=40,
)


#: What stays when all clients are gone, by part: what waits in mailboxes and services, and what is set up.
STAYS = {
    "settings", "counters", "events", "mailboxes.mailboxes", "mailboxes.requests", "mailboxes._deadlines",
    "publishing.subjects", "_subjects", "_commands",
}  # fmt: skip


def left_behind(machine: ServerMachine) -> dict[str, Any]:
    """Whatever in the machine and its parts holds something, and should not."""
    parts = {name: part for name, part in vars(machine).items() if hasattr(part, "__dict__")}
    held = {
        f"{name}.{inner}": value
        for name, part in parts.items()
        for inner, value in vars(part).items()
        if isinstance(value, Sized)
    }
    held |= {name: value for name, value in vars(machine).items() if isinstance(value, Sized)}
    held |= {"offers": machine.mailboxes.services._offers, "publishers": range(machine.publishing.publishers)}
    return {
        name: value
        for name, value in held.items()
        if not any(name == one or name.endswith("." + one) or name.split(".")[-1] == "_" + one for one in STAYS)
        and len(value)
        and (not isinstance(value, dict) or any(value.values()))
    }


#: The second one ends the session, the third begins another.
OPENED_AGAIN = [("a", encode(wire.Open()))] * 3 + [("b", [b"\xaa\xa8\x02"]), ("a", encode(wire.StreamWrite(b"")))]


@examples(300)
@example(OPENED_AGAIN, Overflow.DROP_NEWEST, False)
@given(STEPS, st.sampled_from(Overflow), st.booleans())
def test_the_machine_never_raises_and_keeps_its_books(steps: list[Any], overflow: Overflow, obedient: bool) -> None:
    total = 100 + 4 * LETTER_OVERHEAD
    limits = Limits(each=60, total=total)
    desk = MachineHarness(timeout=5, queue=1200, overflow=overflow, mailboxes=limits, services=limits, repeats=2)
    desk.obedient = obedient
    machine = desk.machine
    for step in steps:
        if isinstance(step, tuple):
            desk.feed(*step)
        elif isinstance(step, float):
            desk.now += step
            machine.expire(desk.now)
        elif step == "lost" and b"st" in machine.streams:
            machine.stream_lost(b"st", "gone")
            desk.engines.pop(b"st", None)
        elif step == "obey":
            desk.obey()
        elif len(machine.clients):
            client = next(iter(machine.clients))
            machine.clients.block(client, [b""]) if step == "block" else machine.unblock(client)
    desk.obey()
    assert not any(machine.streams[name].awaited for name in machine.streams)
    for address, client in machine.clients.by_address.items():
        assert client.connected
        assert client.address == address
        assert machine.clients.by_identity[client.identity] is client
    for client in machine.clients:
        assert not client.pending_replies
        assert client.queue.size <= 1200
        assert client.credit.left is None or client.credit.left >= 0
    for store in (machine.mailboxes.mailboxes, machine.mailboxes.requests):
        returned = 3 * 2 * 1200  # of three clients: what waited for them, and what they had not confirmed
        assert store.size + LETTER_OVERHEAD * len(store) <= total + returned
        assert store.size == sum(queue.size for queue in store._queues.values())
        assert len(store) == sum(map(len, store._queues.values()))
    desk.obedient = True
    desk.expire(1000)
    assert len(machine.clients) == 0
    assert machine.clients.by_address == {}
    assert all(engine.may_end() for engine in desk.engines.values())
    desk.end_idle_streams()
    assert left_behind(machine) == {}
    desk.received.clear()
    desk.open("fresh", "fresh")


# --- Clients that leave have no state left in engines -----------------------------------------------------------------

CLIENTS = 2000 if EXPLORE else 100


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[MachineHarness]:
    """All streams are durable."""

    def durable(stream: bytes) -> DurableEngine:
        return DurableEngine(stream, {"folder": str(tmp_path)})

    desk = MachineHarness(durable, timeout=10.0)
    desk.obedient = False
    yield desk
    for engine in desk.engines.values():
        engine.close()


def acks(desk: MachineHarness) -> AckTracker:
    engine = desk.engines[b"st"]
    assert isinstance(engine, DurableEngine)
    return engine._acks


@pytest.mark.parametrize("features", [Feature.ACKS, Feature.HEADERS], ids=["asks what became of it", "never asks"])
@pytest.mark.parametrize("way", ["CLOSE", "expiry", "takeover"])
def test_the_engine_forgets_what_became_of_messages_of_clients_that_are_gone(
    desk: MachineHarness, features: Feature, way: str
) -> None:
    opening = wire.Open(b"same" if way == "takeover" else b"", write(Extension(features=features)))
    for n in range(CLIENTS):
        desk.send(str(n), opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"))
        if way == "CLOSE":
            desk.send(str(n), wire.Close())
    desk.obey()
    if way == "expiry":
        assert len(acks(desk)) == CLIENTS
        desk.expire(100.0)
    assert len(acks(desk)) == (1 if way == "takeover" else 0)
    assert not any(desk.machine.streams[name].awaited for name in desk.machine.streams)


def test_what_a_client_sent_before_it_left_is_stored_and_the_next_of_its_name_is_told_only_of_its_own(
    desk: MachineHarness,
) -> None:
    opening = wire.Open(b"same", write(Extension(features=Feature.ACKS)))
    desk.send("1", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"), wire.Close())
    desk.send("2", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"c"))
    desk.obey()
    runs = acks(desk).take(desk.machine.clients.by_identity[b"2"]).acks()
    assert [(run.count, run.first) for run in runs] == [(1, 3)]


def test_what_waited_for_a_client_that_is_gone_is_freed_in_turns() -> None:
    desk = MachineHarness(timeout=0.0, queue=1 << 30)
    for name in ("reader", "writer"):
        desk.open(name)
    desk.send("reader", wire.StreamRead(b"s", b""))
    desk.send("writer", wire.StreamWrite(b"s"))
    (reader,) = (client for client in desk.machine.clients if client.address == b"reader")
    desk.machine.clients.block(reader, [b"what its socket did not take"])
    for _ in range(2500):
        desk.send("writer", wire.StreamSend(b"a", [b"1"]))
    queue = reader.queue
    assert len(queue) == 2500
    desk.send("reader", wire.Close())
    lengths = [len(queue)]
    while desk.machine.has_garbage:
        desk.machine.free_some()
        lengths.append(len(queue))
    assert lengths == [2500, 1500, 500, 0]

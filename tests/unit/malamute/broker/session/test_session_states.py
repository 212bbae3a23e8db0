"""The table of a client's session: every state and every event, driven through the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mama_spark.malamute.broker.session.states import (
    CONNECTED,
    EVENTS,
    START,
    TABLE,
    SessionAction,
    SessionEvent,
    SessionState,
)
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.extensions import ALL, Extension, Feature, write

from tests.support.malamute.session_machine import INVALID, OK, MachineHarness
from tests.support.tables import each


def command(*sent: wire.Command) -> Callable[[MachineHarness], None]:
    def send(machine: MachineHarness) -> None:
        for one in sent:
            machine.feed("a", encode(one))

    return send


def takes_over(machine: MachineHarness) -> None:
    machine.feed("b", encode(wire.Open(b"a")))


def sends_to_an_engine_that_has_not_started(machine: MachineHarness) -> None:
    machine.obedient = False
    command(wire.StreamWrite(b"new"), *[wire.StreamSend(b"s", [b"x" * 1000])] * 3)(machine)
    machine.obey()


def fills_the_backlog(machine: MachineHarness) -> None:
    command(wire.StreamWrite(b"s"))(machine)
    machine.machine.streams.full.add(b"s")
    command(wire.StreamSend(b"s"))(machine)


def reads_no_replies(machine: MachineHarness) -> None:
    machine.machine.clients.by_identity[b"a"].blocked = True
    command(*[wire.Ping()] * 100)(machine)


#: What brings each event about, for the client ``a``.
CAUSES: dict[SessionEvent, Callable[[MachineHarness], None]] = {
    SessionEvent.OPEN: command(wire.Open(b"x")),
    SessionEvent.CLOSE: command(wire.Close()),
    SessionEvent.PING: command(wire.Ping()),
    SessionEvent.WRITE: command(wire.StreamWrite(b"s")),
    SessionEvent.READ: command(wire.StreamRead(b"s", b"p")),
    SessionEvent.CANCEL: command(wire.StreamCancel(b"s")),
    SessionEvent.SEND: command(wire.StreamSend(b"s")),
    SessionEvent.SEND_WITHOUT_STREAM: command(wire.StreamSend(b"s")),
    SessionEvent.MAILBOX_SEND: command(wire.MailboxSend(b"nobody", b"s")),
    SessionEvent.OFFER: command(wire.ServiceOffer(b"v", b"p")),
    SessionEvent.SERVICE_SEND: command(wire.ServiceSend(b"v", b"s")),
    SessionEvent.CREDIT: command(wire.Credit(1)),
    SessionEvent.CONFIRM: command(wire.Confirm(b"t")),
    SessionEvent.CONFIRM_UNANNOUNCED: command(wire.Confirm(b"t")),
    SessionEvent.SERVER_ONLY: command(wire.Pong()),
    SessionEvent.MALFORMED: lambda machine: machine.feed("a", [b"nonsense"]),
    SessionEvent.EXPIRED: lambda machine: machine.expire(11.0),
    SessionEvent.TAKEN_OVER: takes_over,
    SessionEvent.SENT_TOO_EARLY: sends_to_an_engine_that_has_not_started,
    SessionEvent.RESERVED_SUBJECT: command(wire.StreamWrite(b"_MAMA_EVENTS"), wire.StreamSend(b"GONE.a")),
    SessionEvent.TOO_MANY_HEADERS: command(
        wire.StreamWrite(b"s"), wire.StreamSend(b"s", [b""], write(Extension(headers=((b"", b""),) * 65_537)))
    ),
    SessionEvent.BACKLOG_FULL: fills_the_backlog,
    SessionEvent.QUEUE_FULL: reads_no_replies,
}
#: Events that a command or frames of the client itself cannot be; they come only to connected clients.
NOT_A_COMMAND = (
    SessionEvent.EXPIRED,
    SessionEvent.TAKEN_OVER,
    SessionEvent.SENT_TOO_EARLY,
    SessionEvent.RESERVED_SUBJECT,
    SessionEvent.TOO_MANY_HEADERS,
    SessionEvent.BACKLOG_FULL,
    SessionEvent.QUEUE_FULL,
)
#: Features that the client announces; without any, else.
FEATURES = {
    SessionEvent.CONFIRM: Feature.CONFIRM,
    SessionEvent.RESERVED_SUBJECT: ALL,
    SessionEvent.TOO_MANY_HEADERS: Feature.HEADERS,
    SessionEvent.BACKLOG_FULL: Feature.ACKS,
}


def why_gone(machine: MachineHarness) -> list[bytes]:
    return [detail for kind, _, _, detail in machine.machine.clients.events.take() if kind == "GONE"]


@each("event", SessionEvent)
def test_a_connected_client_goes_where_the_table_says(event: SessionEvent) -> None:
    machine = MachineHarness(timeout=10.0, queue=2000)
    machine.open("a", features=FEATURES.get(event))
    if event is SessionEvent.SEND:
        command(wire.StreamWrite(b"s"))(machine)
    machine.received.clear()
    CAUSES[event](machine)
    step = TABLE.step(CONNECTED, event)
    client = machine.machine.clients.by_identity.get(b"a")
    assert (client is not None) is (step.state is CONNECTED)
    if client is None and Feature.DISCOVERY not in (FEATURES.get(event) or Feature(0)):
        assert why_gone(machine) == [event.value.encode()]
    replies = machine.got("a")
    if step.action is SessionAction.REPLY_OK:
        assert replies == [OK]
    elif step.action is SessionAction.REPLY_INVALID:
        assert replies == [INVALID]
    elif step.action is SessionAction.REPLY_FAILED:
        assert [type(one) for one in replies] == [wire.Error]
    elif step.action is SessionAction.COUNT_MALFORMED:
        assert replies == []
        assert machine.machine.clients.counters.malformed == 1


@pytest.mark.spec("S1", "S2", "S5")
@each("event", [event for event in SessionEvent if event not in NOT_A_COMMAND])
def test_a_stranger_goes_where_the_table_says(event: SessionEvent) -> None:
    machine = MachineHarness()
    CAUSES[event](machine)
    step = TABLE.step(START, event)
    assert (b"a" in machine.machine.clients.by_identity) is (step.state is CONNECTED)
    expected = {
        SessionAction.OPEN: [OK],
        SessionAction.REPLY_OK: [OK],
        SessionAction.REPLY_INVALID: [INVALID],
        SessionAction.COUNT_MALFORMED: [],
    }
    assert machine.got("a") == expected[step.action or SessionAction.OPEN]
    assert machine.machine.clients.counters.refused == (step.action is SessionAction.REPLY_INVALID)


def test_the_table_is_complete_and_every_command_has_an_event() -> None:
    assert {(state, event) for state, event, _ in TABLE} == {
        (state, event)
        for state in SessionState
        for event in SessionEvent
        if state is CONNECTED or event not in NOT_A_COMMAND
    }
    server_only = {3, 8, 10, 13, 14, 15}
    assert {cls.id for cls in EVENTS} == set(range(1, 19)) - server_only

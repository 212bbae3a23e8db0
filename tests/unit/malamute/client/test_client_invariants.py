"""Whatever a broker says, the client raises nothing, and both find together again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ClientClosed, Unavailable
from mama_spark.malamute.broker.engines.commands import AnsweredCommand
from mama_spark.malamute.broker.session.clients import ClientSession
from mama_spark.malamute.client.calls import Call, NoStream
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, encode
from mama_spark.malamute.protocol.extensions import Extension, write

from tests.support.malamute.client_machine import ALL, FAR, client, do
from tests.support.malamute.session_machine import server
from tests.support.tiers import examples

ANSWERS = st.one_of(
    st.sampled_from([Ok(), Error(500), Error(300), Error(502), Pong(), wire.Ping(), wire.Confirm(b"t")]).map(encode),
    st.just(encode(wire.StreamDeliver(b"s", b"w", b"x", trailing=write(Extension(sequence=4))))),
    st.lists(st.binary(max_size=10), max_size=2),
)


ACTS = st.one_of(
    ANSWERS,
    st.floats(0, 3),
    st.sampled_from([wire.Ping(), wire.Close(), wire.StreamWrite(b"s"), wire.StreamRead(b"s", b"p"), wire.Credit(3),
                     wire.StreamCancel(b"s"), wire.ServiceOffer(b"v", b"p"), wire.StreamSend(b"t"),
                     wire.MailboxSend(b"m", b"s")]),
)  # fmt: skip


@examples(300)
@given(st.lists(ACTS, max_size=40))
def test_nothing_a_broker_says_raises_and_no_call_stays_open(acts: list[Any]) -> None:
    machine, now = client(features=ALL), 0.0
    calls: list[Call] = [machine.connect(now, 20.0)]
    for act in acts:
        if isinstance(act, float):
            now += act
            machine.tick(now)
        elif isinstance(act, list):
            machine.receive(act, now)
        else:
            try:
                do_with_deadline(machine, act, now, calls)
            except (ClientClosed, Unavailable, NoStream):
                continue
        assert machine.credit.left is not None
        assert machine.credit.left >= 0
    machine.tick(now + 1000)
    assert [call for call in calls if not call.done] == []


def do_with_deadline(machine: ClientMachine, act: Command, now: float, calls: list[Call]) -> None:
    made: Call | None = None
    match act:
        case wire.Ping():
            made = machine.ping(now, now + 10)
        case wire.Close():
            made = machine.close(now + 10)
        case wire.StreamWrite() | wire.StreamRead() | wire.StreamCancel() | wire.ServiceOffer():
            made = machine.call(act, now + 10)
        case _:
            do(machine, act)
    if made is not None:
        calls.append(made)


class Pair:
    """A client and a broker; engines take whatever they are given."""

    def __init__(self) -> None:
        self.client, self.broker, self.now, self.identity = (
            client(features=ALL),
            server(),
            0.0,
            0,
        )

    def run(self, drop: bool = False) -> None:
        """Everything under way arrives, or is lost."""
        for _ in range(20):
            if self.client.reset:
                self.client.reset = False
                self.identity += 1
            me = b"%d" % self.identity
            out, self.client.out = self.client.out, []
            for frames in [] if drop else out:
                self.broker.receive(me, frames, self.now)
            orders = self.broker.streams.take_commands()
            for stream, commands in orders.items():
                for command in commands:
                    if isinstance(command, AnsweredCommand):
                        self.broker.command_done(stream)
            answers = self.broker.clients.take_output()
            for to, frames in [] if drop else answers:
                if (to.identity if isinstance(to, ClientSession) else to) == me:
                    self.client.receive(frames, self.now)


@examples(100)
@given(st.lists(st.sampled_from(["restart", "lose", "silence", "wait", "write", "read", "send"]), max_size=20))
def test_client_and_broker_find_together_again_whatever_happens(events: list[str]) -> None:
    pair = Pair()
    pair.client.connect(0.0, FAR)
    pair.run()
    for n, event in enumerate(events):
        if event == "restart":
            pair.broker = server()
        elif event == "lose":
            pair.run(drop=True)
        elif event in ("silence", "wait"):
            pair.now += 5.0 if event == "silence" else 0.5
            pair.client.tick(pair.now)
            pair.broker.expire(pair.now)
        elif event == "write" and pair.client.state in (ClientState.CONNECTED, ClientState.RECONNECTING):
            pair.client.call(wire.StreamWrite(b"s%d" % (n % 3)), FAR)
        elif event == "read" and pair.client.state in (ClientState.CONNECTED, ClientState.RECONNECTING):
            pair.client.call(wire.StreamRead(b"r", b"%d" % n), FAR)
        elif event == "send" and pair.client.registered.stream and pair.client.state is ClientState.CONNECTED:
            pair.client.send_frames([wire.encode(wire.StreamSend(b"t"))])
        pair.run()
    for _ in range(10):
        pair.now += 2.1
        pair.client.tick(pair.now)
        pair.run()
    assert pair.client.state is ClientState.CONNECTED
    me = pair.broker.clients.by_identity[b"%d" % pair.identity]
    assert me.address == b"me"
    assert me.write_stream == pair.client.registered.stream
    assert me.subscriptions == {stream: set(patterns) for stream, patterns in pair.client.registered.reads.items()}

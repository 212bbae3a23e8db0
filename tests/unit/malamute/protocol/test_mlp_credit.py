"""Credit: what is given, used, lent and given back, of deliveries and of sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.engines import Delivery
from mama_spark.malamute.broker.engines.commands import (
    AcceptMessage,
    CancelSubscriptions,
    CompilePattern,
    ConnectTraffic,
    EngineCommand,
    GiveCredit,
    RecallCredit,
)
from mama_spark.malamute.broker.session.clients import ClientSession
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.credit import (
    DELIVERY_WINDOW,
    LONGEST_ROTATION,
    CreditAllocator,
    DeliveryCredit,
    SendWindow,
)
from mama_spark.malamute.protocol.extensions import Extension, Feature, write

from tests.support.malamute.session_machine import server
from tests.support.tiers import examples

# Credit of one client over several streams (ML-07, ML-21): never exceeded, and no message is lost without credit

STREAMS = [b"holds1", b"holds2", b"holds3", b"live"]  #: the last does not hold


class Holder:
    """A stream's engine and actor: holds what is beyond the credit, where it holds at all. Each message is for all."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.holds = name.startswith(b"holds")
        self.inbox: deque[list[EngineCommand]] = deque()
        self.reports: deque[list[tuple[Any, ...]]] = deque()
        self.waiting: dict[Hashable, deque[bytes]] = {}
        self.credit: dict[Hashable, int] = {}

    def step(self) -> None:
        """One batch."""
        if not self.inbox:
            return
        report: list[tuple[Any, ...]] = []
        recalls = []
        for command in self.inbox.popleft():
            match command:
                case CompilePattern(client):
                    self.waiting.setdefault(client, deque())
                    report.append(("taken",))
                case CancelSubscriptions(client):
                    self.waiting.pop(client, None)
                    self.credit.pop(client, None)
                    report.append(("taken",))
                case ConnectTraffic():
                    report.append(("taken",))
                case GiveCredit(client, amount):
                    self.credit[client] = self.credit.get(client, 0) + (amount or 0)
                case RecallCredit(client):
                    recalls.append(client)
                case AcceptMessage():
                    for reader, queue in self.waiting.items():
                        if reader is not command.client:
                            queue.append(command.subject)
            self._deliver(report)
        for client in recalls:
            report.append(("returned", client, self.credit.get(client, 0)))
            if client in self.credit:
                self.credit[client] = 0
        self.reports.append(report)

    def _deliver(self, report: list[tuple[Any, ...]]) -> None:
        for client, queue in self.waiting.items():
            while queue and (not self.holds or self.credit.get(client, 0) > 0):
                if self.holds:
                    self.credit[client] -= 1
                report.append(("delivery", Delivery(client, b"w", queue.popleft(), [])))


class Site:
    """A machine, slow engines, and a client whose socket may be full."""

    def __init__(self, **values: Any) -> None:
        self.machine = server(timeout=0, **values)
        self.engines = {name: Holder(name) for name in STREAMS}
        self.got: list[wire.StreamDeliver] = []
        self.full = False
        self.now = 1.0

    def say(self, client: bytes, *commands: wire.Command) -> None:
        for command in commands:
            self.machine.receive(client, encode(command), self.now)
        self.pump()

    def open(self, client: bytes, features: Feature | None = None) -> ClientSession:
        self.say(client, wire.Open(client, write(Extension(features=features)) if features else b""))
        return self.machine.clients.by_identity[client]

    def read(self, credit: int, *streams: bytes) -> ClientSession:
        reader = self.open(b"r", Feature.CREDIT)
        self.say(b"r", *(wire.StreamRead(stream, b"") for stream in streams), wire.Credit(credit))
        return reader

    def write(self, stream: bytes, number: int) -> None:
        self.open(b"w")
        self.say(b"w", wire.StreamWrite(stream), *(wire.StreamSend(b"%d" % i, []) for i in range(number)))

    def pump(self) -> None:
        machine = self.machine
        orders = machine.streams.take_commands()
        for name, batch in orders.items():
            self.engines[name].inbox.append(batch)
        out = machine.clients.take_output()
        for client, frames in out:
            if isinstance(client, ClientSession) and client.address == b"r":
                if self.full or client.blocked:
                    machine.clients.block(client, frames)
                    continue
                self._take(frames)

    def _take(self, frames: list[bytes]) -> None:
        command = wire.decode(frames)
        if isinstance(command, wire.StreamDeliver):
            self.got.append(command)

    def report(self, name: bytes) -> None:
        """The machine takes one report of this engine."""
        engine = self.engines[name]
        if not engine.reports:
            return
        run: list[Delivery] = []
        for kind, *rest in engine.reports.popleft():
            if kind == "delivery":
                run += rest
                continue
            self.machine.deliveries.delivered(name, run)
            run = []
            if kind == "taken":
                self.machine.command_done(name)
            else:
                self.machine.credit_returned(name, *rest)
        self.machine.deliveries.delivered(name, run)
        self.pump()

    def drain(self) -> None:
        """The socket takes all that may go."""
        machine, client = self.machine, self.machine.clients.by_address.get(b"r")
        self.full = False
        if client is not None and client.blocked:
            while (frames := machine.deliveries.next_for(client)) is not None:
                self._take(frames)
            machine.unblock(client)
        self.pump()

    def tick(self) -> None:
        self.now += LONGEST_ROTATION
        self.machine.expire(self.now)
        self.pump()

    def settle(self, rounds: int = 40) -> None:
        for _ in range(rounds):
            self.drain()
            for name, engine in self.engines.items():
                while engine.inbox or engine.reports:
                    engine.step()
                    self.report(name)
            self.tick()


def subjects(site: Site, stream: bytes) -> list[bytes]:
    return [one.subject for one in site.got if one.address == stream]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(STREAMS), st.integers(1, 6)),
        st.tuples(st.just("credit"), st.integers(1, 9)),
        st.tuples(st.just("step"), st.sampled_from(STREAMS)),
        st.tuples(st.just("report"), st.sampled_from(STREAMS)),
        st.tuples(st.sampled_from(["full", "drain", "tick"])),
        st.tuples(st.just("reread"), st.sampled_from(STREAMS[:3])),
    ),
    max_size=60,
)


@pytest.mark.spec("ML-07", "ML-21")
@given(steps=STEPS, limited=st.booleans())
@examples(200)
def test_shares_never_exceed_credit_and_all_is_delivered_once_there_is_credit(steps: list[Any], limited: bool) -> None:
    """For any sequence of steps: no delivery beyond the credit, none of an engine with flow control lost or delayed."""
    site = Site()
    reader = site.open(b"r", Feature.CREDIT if limited else None)
    site.say(b"r", *(wire.StreamRead(name, b"") for name in STREAMS))
    for name in STREAMS:
        site.open(b"w" + name)
        site.say(b"w" + name, wire.StreamWrite(name))
    given_credit, always_limited = 0, limited
    sent: dict[bytes, list[bytes]] = {name: [] for name in STREAMS}
    cancelled: set[bytes] = set()
    site.settle(2)
    for kind, *values in steps:
        if kind == "send":
            for _ in range(values[1]):
                subject = b"%d" % len(sent[values[0]])
                sent[values[0]].append(subject)
                site.say(b"w" + values[0], wire.StreamSend(subject, []))
        elif kind == "credit":
            given_credit += values[0]
            limited = True
            if reader.credit.left is None:  # it was unlimited up to here
                given_credit += len(site.got) + len(reader.replies)
            site.say(b"r", wire.Credit(values[0]))
        elif kind == "step":
            site.engines[values[0]].step()
        elif kind == "report":
            site.report(values[0])
        elif kind == "full":
            site.full = True
        elif kind == "reread":
            cancelled.add(values[0])
            site.say(b"r", wire.StreamCancel(values[0]), wire.StreamRead(values[0], b""))
        else:
            getattr(site, kind)()
        if limited:
            assert len(site.got) <= given_credit
            assert reader.credit.left is not None
            assert reader.credit.left >= 0
            assert not always_limited or reader.allocator.lent + len(reader.lent_deliveries) <= reader.credit.left
        assert reader.allocator.lent >= 0
        assert reader.allocator.lent <= reader.allocator.window
    if limited:
        needed = sum(map(len, sent.values())) + len(STREAMS)
        site.say(b"r", wire.Credit(needed))
    site.settle()
    for name in STREAMS:
        if name not in cancelled:
            assert subjects(site, name) == sent[name]
    assert site.machine.clients.counters.lost_deliveries == 0


@pytest.mark.spec("ML-21")
def test_with_less_credit_than_streams_the_credit_rotates() -> None:
    """Credit of one, three streams, messages only on the last."""
    site = Site()
    site.read(1, *STREAMS[:3])
    site.write(b"holds3", 2)
    site.settle()
    assert subjects(site, b"holds3") == [b"0"]
    site.say(b"r", wire.Credit(1))
    site.settle()
    assert subjects(site, b"holds3") == [b"0", b"1"]


@pytest.mark.spec("ML-21")
def test_an_unlimited_client_that_does_not_read_is_lent_a_window_and_loses_nothing() -> None:
    """The policy for slow readers never applies to a stored stream, because the engine keeps its messages."""
    site = Site(queue=10_000)
    reader = site.open(b"r")
    site.say(b"r", wire.StreamRead(b"holds1", b""))
    site.write(b"holds1", 0)
    site.settle(2)
    site.full = True
    for i in range(500):
        site.say(b"w", wire.StreamSend(b"%d" % i, [b"x" * 100]))
        site.engines[b"holds1"].step()
        site.report(b"holds1")
    assert len(site.engines[b"holds1"].waiting[reader]) > 300
    assert reader.lent_deliveries.size + reader.replies.size <= 20_000
    site.settle()
    assert subjects(site, b"holds1") == [b"%d" % i for i in range(500)]
    assert site.machine.clients.counters.lost_deliveries == 0


def test_credit_of_a_stream_that_is_lost_or_left_goes_to_the_others() -> None:
    site = Site()
    reader = site.read(10, b"holds1", b"holds2")
    site.settle(2)
    site.machine.stream_lost(b"holds1", "gone")
    site.say(b"r", wire.StreamCancel(b"holds2"), wire.StreamRead(b"holds3", b""))
    site.write(b"holds3", 10)
    site.settle(3)
    assert len(site.got) == 10
    assert reader.credit.left == reader.allocator.lent == 0


def test_an_engine_that_delivers_beyond_its_share_is_held_to_the_limits_of_the_others() -> None:
    """An engine of another package may break the rules; the client's limits still hold."""
    site = Site(queue=500)
    reader = site.read(2, b"holds1")
    site.settle(2)
    site.machine.deliveries.delivered(b"holds1", [Delivery(reader, b"w", b"%d" % i, []) for i in range(50)])
    site.pump()
    assert len(site.got) == 2
    assert reader.queue.size <= 500
    assert site.machine.clients.counters.lost_deliveries > 0


def test_large_messages_make_the_window_small() -> None:
    shares = CreditAllocator()
    shares.add_stream(b"s")
    assert shares.window == 1024
    for _ in range(200):
        shares.lend(1)
        shares.use(b"s", 5_000_000)
    assert shares.window == 1
    for _ in range(400):
        shares.lend(1)
        shares.use(b"s", 100)
    assert shares.window == DELIVERY_WINDOW


# --- credit of one receiver: it adds up, each delivery uses one, and use never makes it negative ----------------------


def test_without_a_first_credit_there_is_no_limit_and_a_limit_can_be_lifted() -> None:
    credit = DeliveryCredit()
    assert all(credit.use() for _ in range(3))
    assert (credit.left, credit.exhausted, credit.limit(7), credit.take_back()) == (None, False, 7, 0)
    credit = DeliveryCredit(0)
    assert not credit.use()
    credit.give(None)
    assert credit.use()
    credit.give(3)
    assert [credit.limit(most) for most in (0, 3, 9)] == [0, 3, 3]


@examples(100)
@given(st.lists(st.integers(0, 5) | st.sampled_from(["use", "recall"]), max_size=40))
def test_what_is_used_or_taken_back_was_given(steps: list[int | str]) -> None:
    credit, expected = DeliveryCredit(0), 0
    for step in steps:
        if isinstance(step, int):
            credit.give(step)
            expected += step
        elif step == "recall":
            assert credit.take_back() == expected
            expected = 0
        else:
            assert credit.use() is (expected > 0)
            expected = max(0, expected - 1)
        assert (credit.left, credit.exhausted) == (expected, not expected)


# --- send windows and delivery credit of a client: neither exceeds what was granted -----------------------------------

WINDOW = 10_000


@examples(100)
@given(st.lists(st.integers(0, 3_000) | st.sampled_from(["ask", "answer", "grant"]), max_size=40))
def test_what_is_left_and_what_is_under_way_never_exceed_the_window_together(steps: list[int | str]) -> None:
    allowance, asked = SendWindow(), list[int]()
    for step in steps:
        if isinstance(step, int):
            if allowance.left > 0:
                allowance.sent(step)
        elif step == "ask":
            asked.append(allowance.ping())
        elif step == "grant":
            allowance.grant(WINDOW)
        elif asked:
            allowance.answered(asked.pop(0))
        assert allowance.left + allowance.unanswered <= WINDOW
        assert allowance.unanswered >= 0
    asked.append(allowance.ping())
    for raw in asked:
        allowance.answered(raw)
    allowance.grant(WINDOW)
    assert (allowance.left, allowance.unanswered) == (WINDOW, 0)

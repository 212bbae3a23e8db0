"""Send windows and delivery credit of a client: neither exceeds what was granted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.credit import MESSAGE_OVERHEAD, SendWindow
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine

from tests.support.tiers import examples

WINDOW = 10_000


def test_octets_that_are_under_way_are_granted_again_only_when_engines_answered_for_them() -> None:
    allowance = SendWindow()
    assert allowance.grant(WINDOW) == WINDOW
    allowance.sent(4_000, 2)
    cost = 4_000 + 2 * MESSAGE_OVERHEAD
    assert (allowance.left, allowance.unanswered) == (WINDOW - cost, cost)
    assert allowance.grant(WINDOW) == 0
    allowance.answered(allowance.ping())
    assert allowance.unanswered == 0
    assert allowance.grant(WINDOW) == cost


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
    for octets in asked:
        allowance.answered(octets)
    allowance.grant(WINDOW)
    assert (allowance.left, allowance.unanswered) == (WINDOW, 0)


def test_credit_adds_up() -> None:
    machine = ServerMachine(SessionSettings())
    machine.receive(b"r", encode(commands.Open(b"r", write(Extension(features=Feature.CREDIT)))), 0.0)
    machine.receive(b"w", encode(commands.Open(b"w")), 0.0)
    for amount in (2, 3):
        machine.receive(b"r", encode(commands.Credit(amount)), 0.0)
    machine.take_output()
    for _ in range(7):
        machine.receive(b"w", encode(commands.MailboxSend(b"r", b"s")), 0.0)
    assert len(machine.output) == 5
    machine.receive(b"r", encode(commands.Credit(1)), 0.0)
    assert len(machine.output) == 6

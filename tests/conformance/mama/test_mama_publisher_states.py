"""The states of a publisher, and a model of its life that any sequence of calls is held to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mama_spark.contracts.bridge import EventStyle
from mama_spark.mama import Publisher, PublisherState, Queue, Status, Transport
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import CallbackRecorder, MemoryMamaHarness, a_message, fails, published
from tests.support.tiers import examples


class Life(RuleBasedStateMachine):
    """One publisher over the memory bridge against what the specification says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.on = MemoryMamaHarness(EventStyle.PUBLISHER)
        self.recorder = CallbackRecorder()
        self.transport = self.on.transport(destroy_timeout=0.02, answer_timeout=60)
        self.publisher = published(self.on, self.transport, self.recorder)
        self.sent = self.late = 0
        self.destroyed = False

    @precondition(lambda self: not self.destroyed)
    @rule(fault=st.sampled_from(["ack", "reject", "503", "late", "dup"]))
    def send(self, fault: str) -> None:
        self.on.broker.then([fault])
        self.publisher.send(a_message())
        if fault == "late":
            self.late += 1
        else:
            self.sent += 1
            until(lambda: self.answers == self.sent)

    @rule()
    def release(self) -> None:
        self.on.broker.release()
        if not self.destroyed:
            self.sent, self.late = self.sent + self.late, 0
            until(lambda: self.answers == self.sent)
        self.late = 0

    @rule(how=st.sampled_from(["destroy", "destroy_ex", "transport"]))
    def destroy(self, how: str) -> None:
        {"destroy": self.publisher.destroy, "destroy_ex": self.publisher.destroy_ex,
         "transport": self.transport.destroy}[how]()  # fmt: skip
        if how == "transport":
            self.late = 0
        self.destroyed = True

    @precondition(lambda self: self.destroyed)
    @rule()
    def use_it_nevertheless(self) -> None:
        fails(Status.NULL_ARG, self.publisher.send, a_message())

    @property
    def answers(self) -> int:
        return self.recorder.count("error") + self.recorder.count("success")

    @invariant()
    def the_state_is_the_models(self) -> None:
        if not self.destroyed:
            assert self.publisher.state is PublisherState.LIVE, "errors change no state"
        elif self.late:
            assert self.publisher.state is PublisherState.DESTROYING_WAIT_BRIDGE
        else:
            until(lambda: self.publisher.state is PublisherState.DESTROYED)

    @invariant()
    def the_callbacks_are_the_models(self) -> None:
        assert self.recorder.count("create") == 1
        assert self.recorder.count("destroy") == self.destroyed
        assert self.answers == self.sent
        assert {h[1] for h in self.recorder.heard if h[0] == "destroy"} <= {"DESTROYING"}
        assert {h[1] for h in self.recorder.heard if h[0] in ("error", "success")} <= {"LIVE"}
        if self.destroyed:
            assert self.recorder.heard[-1][0] == "destroy"

    def teardown(self) -> None:
        self.on.close()


TestLife = Life.TestCase
TestLife.settings = examples(25, stateful_step_count=12)


@pytest.mark.spec("PE-43")
@examples(20)
@given(st.lists(st.sampled_from(["ack", "reject", "lose", "429"]), max_size=12), st.booleans())
def test_every_send_has_one_callback_or_none_whatever_happens(faults: list[str], queued: bool) -> None:
    on, recorder = MemoryMamaHarness(EventStyle.PUBLISHER), CallbackRecorder()
    queue = Queue() if queued else None
    transport = on.transport(destroy_timeout=0.01)
    publisher = published(on, transport, recorder, queue=queue)
    on.broker.then(faults)
    for i in range(len(faults)):
        publisher.send(a_message(i))
    if "lose" in faults:
        answered = sum(f != "lose" for f in faults)
        until(lambda: recorder.count("error") + recorder.count("success") + (queue.get_event_count() if queue else 0)
              == answered)  # fmt: skip
    else:
        transport.destroy_timeout = 60
    publisher.destroy()
    assert recorder.counters == (1, sum(f in ("reject", "429") for f in faults), faults.count("ack"), 1)
    on.close()


def test_the_url_of_a_broker_with_a_login_is_a_bridge(nats_with_users: Any, recorder: CallbackRecorder) -> None:
    server, _ = nats_with_users
    with Transport.create("pub", server.url.replace("nats://", "nats://a:p@")) as transport:
        publisher = Publisher.create_with_callbacks(transport, None, "url", "t", None, recorder.callbacks())
        publisher.send(a_message())
        publisher.destroy()
    assert recorder.counters == (1, 0, 1, 1)

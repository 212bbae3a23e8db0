"""Records that are appended one by one: what goes again, and to which stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from mama_spark.contracts.bridge import Ack, Acks, Capabilities, PollResult, Refusals, ValidationResult
from mama_spark.contracts.errors import NoResponders, OutcomeUnknown, PublishError, Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.read import append as appending
from mama_spark.nats.settings import NatsSettings

TOPIC = "t"
ACKNOWLEDGES = Capabilities(Ack.STORED, True, True, True, False, 1 << 20, 1024)


@dataclass
class Scripted:
    """A bridge that answers each send with what comes next: a sequence, or an error."""

    answers: list[int | PublishError]
    settings: NatsSettings = field(default_factory=NatsSettings)
    capabilities: Capabilities = ACKNOWLEDGES
    tokens: list[int] = field(default_factory=list)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def flush(self) -> None: ...

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        return ValidationResult()

    def send(self, batch: MessageBatch, first_token: int) -> int:
        self.tokens.append(first_token)
        return len(batch)

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        token, answer = np.array([self.tokens[-1]]), self.answers.pop(0)
        if isinstance(answer, PublishError):
            return PollResult(refusals=[Refusals(token, answer, 0.0)])
        return PollResult(acks=[Acks(token, np.array([answer]), None, None, 0.0)])


Make = Callable[..., Scripted]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(*answers: int | PublishError) -> Scripted:
        bridge = Scripted(list(answers))

        def opened(settings: NatsSettings) -> Scripted:
            bridge.settings = settings
            return bridge

        monkeypatch.setattr(appending, "NatsBridge", opened)
        monkeypatch.setattr(appending, "RETRY_DELAYS", (0.0,))
        return bridge

    return make


def append(n: int, *, ids: bool) -> int | None:
    batch = MessageBatch.of([TOPIC] * n, [b""] * n, ids=[str(i) for i in range(n)] if ids else None)
    return appending.append(NatsSettings(stream="ANOTHER", create_stream=True), "LOG", batch, 60.0)


def test_each_record_goes_when_the_one_before_it_is_stored(scripted: Make) -> None:
    bridge = scripted(7, 8, 9)
    assert append(3, ids=False) == 9
    assert bridge.tokens == [0, 1, 2]


def test_records_go_to_the_stream_of_the_log_which_is_never_made(scripted: Make) -> None:
    bridge = scripted(1)
    append(1, ids=True)
    assert (bridge.settings.stream, bridge.settings.create_stream) == ("LOG", False)


def test_a_record_that_may_be_stored_goes_again_if_it_has_an_id(scripted: Make) -> None:
    bridge = scripted(OutcomeUnknown("the connection was lost"), 5)
    assert append(1, ids=True) == 5
    assert bridge.tokens == [0, 1]


def test_a_record_that_may_be_stored_and_has_no_id_does_not_go_again(scripted: Make) -> None:
    bridge = scripted(OutcomeUnknown("the connection was lost"), 5)
    with pytest.raises(OutcomeUnknown):
        append(1, ids=False)
    assert bridge.tokens == [0]


@pytest.mark.parametrize("ids", [False, True])
def test_a_record_that_is_certainly_not_stored_goes_again(scripted: Make, ids: bool) -> None:
    bridge = scripted(NoResponders("no leader"), 5)
    assert append(1, ids=ids) == 5
    assert bridge.tokens == [0, 1]


def test_a_record_that_is_refused_for_good_ends_it(scripted: Make) -> None:
    bridge = scripted(1, Rejected("sealed", 400))
    with pytest.raises(Rejected):
        append(3, ids=True)
    assert bridge.tokens == [0, 1]

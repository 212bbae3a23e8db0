"""Records that are appended one by one: what goes again, and to which stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
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


UNKNOWN, NOBODY, REFUSED = OutcomeUnknown("lost"), NoResponders("no leader"), Rejected("sealed", 400)


@pytest.mark.parametrize(
    ("n", "ids", "answers", "tokens"),
    [
        pytest.param(3, False, [7, 8, 9], [0, 1, 2], id="each when the one before it is stored"),
        pytest.param(1, True, [UNKNOWN, 5], [0, 1], id="what may be stored goes again if it has an id"),
        pytest.param(1, False, [UNKNOWN], [0], id="and else not"),
        pytest.param(1, False, [NOBODY, 5], [0, 1], id="what is certainly not stored goes again"),
        pytest.param(1, True, [NOBODY, 5], [0, 1], id="with an id, too"),
        pytest.param(3, True, [1, REFUSED], [0, 1], id="a refusal for good ends it"),
    ],
)
def test_records_are_appended_one_by_one_to_the_stream_of_the_log_which_is_never_made(
    scripted: Make, n: int, ids: bool, answers: list[int | PublishError], tokens: list[int]
) -> None:
    bridge, last = scripted(*answers), answers[-1]
    batch = MessageBatch.of([TOPIC] * n, [b""] * n, ids=[str(i) for i in range(n)] if ids else None)
    with pytest.raises(type(last)) if isinstance(last, PublishError) else nullcontext():
        assert appending.append(NatsSettings(stream="ANOTHER", create_stream=True), "LOG", batch, 60.0) == last
    assert bridge.tokens == tokens
    assert (bridge.settings.stream, bridge.settings.create_stream) == ("LOG", False)

"""What a refused change of a key means, by what the leader has of the key."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from mama_spark.contracts.bridge import Acks, Refusals
from mama_spark.contracts.errors import ExpectationFailed, NotReady, OutcomeUnknown
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.jetstream.answers import NO_MESSAGE, ApiError
from mama_spark.nats.publish.ack_queue import AckQueue
from mama_spark.nats.publish.answers import LatestSends
from mama_spark.nats.publish.conflicts import Conflicts

from tests.support.tables import each

SUBJECT = "$KV.B.a"
TOLD, UNTOLD = "wrong last sequence: 7", "wrong last sequence"


class Leader:
    """Answers with these messages: sequence and id; None: there is none."""

    def __init__(self, *answers: tuple[int, str] | None) -> None:
        self._answers = [_answer(*one) if one else ApiError("no message found", NO_MESSAGE) for one in answers]

    def request_all(self, calls: list[Any]) -> list[Any]:
        assert len(calls) == len(self._answers)
        return self._answers


def _answer(sequence: int, message_id: str) -> dict[str, Any]:
    block = b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % message_id.encode()
    hdrs = b64encode(block).decode()
    return {"message": {"seq": sequence, "time": "2026-01-01T00:00:00Z", "subject": SUBJECT, "hdrs": hdrs}}


@each("refusal, expected, last, following, outcome", [
    (TOLD, 5, (7, "mine"), (6, "other"), 7),
    (TOLD, 5, (7, "other"), (6, "mine"), 6),
    (TOLD, 5, (7, "other"), (6, "other"), ExpectationFailed),
    (TOLD, 0, (7, "other"), (7, "other"), ExpectationFailed),
    (TOLD, 9, (7, "other"), None, ExpectationFailed),
    (TOLD, 5, (5, "other"), None, OutcomeUnknown),  # the leader asked has not applied 7, which may be this change
    (TOLD, 5, (3, "other"), None, OutcomeUnknown),
    (TOLD, 0, None, None, OutcomeUnknown),
    (TOLD, 5, (8, "other"), None, OutcomeUnknown),  # two leaders answered
    (TOLD, 0, (8, "other"), None, OutcomeUnknown),
    (UNTOLD, 5, (5, "other"), None, NotReady),
    (UNTOLD, 5, (3, "other"), None, OutcomeUnknown),
    (UNTOLD, 5, (7, "other"), (6, "other"), ExpectationFailed),
    ("wrong last sequence: 0", 5, None, None, ExpectationFailed),
])  # fmt: skip
def test_only_a_leader_that_has_what_the_refusal_tells_of_decides(
    refusal: str, expected: int, last: Any, following: Any, outcome: int | type[Exception]
) -> None:
    queue, sent = AckQueue(), LatestSends()
    conflicts = Conflicts(Leader(last, following), queue, lambda subject: "KV_B")  # type: ignore[arg-type]
    rows: list[Any] = [{"Nats-Expected-Last-Subject-Sequence": [str(expected)]}]
    part = conflicts.expecting(MessageBatch.of([SUBJECT], [b""], rows, ["mine"]))
    sent.add(3, part.topics, part)
    assert not conflicts.takes(4, sent.message(4), ExpectationFailed(refusal, 10071))
    assert conflicts.takes(3, sent.message(3), ExpectationFailed(refusal, 10071))
    conflicts.resolve()
    polled = queue.take()
    found: list[Acks | Refusals] = [*polled.acks, *polled.refusals]
    assert [type(one.error) if isinstance(one, Refusals) else int((one.sequences or [0])[0]) for one in found] == [
        outcome
    ]

"""The client's side of questions about stored streams (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

A question needs a connection: it is not made again over another one, since whoever asks knows better whether to. What
fetches bring is kept as frames and goes to the call, so that it can be read in columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mama_spark.errors import MamaError, Unavailable

from ..protocol import commands
from ..protocol.extensions import Extension, write
from ..protocol.log_query import LogQuery, LogQueryAnswer, parse_answer

_DELIVER = commands.SIGNATURE + bytes([commands.StreamDeliver.id])


@dataclass(slots=True, eq=False)
class PendingQuery:
    """A question that was sent.

    :ivar done: answered, or given up
    :ivar error: why there is no answer
    :ivar records: frames of the messages that came with the answer
    """

    question: LogQuery
    deadline: float
    done: bool = False
    error: MamaError | None = None
    answer: LogQueryAnswer | None = None
    records: list[Sequence[bytes]] = field(default_factory=list)

    def __repr__(self) -> str:
        state = "pending" if not self.done else repr(self.error) if self.error else "done"
        return f"<PendingQuery {self.question.op.name} {state}>"


class LogQueryClient:
    """The part of :class:`~mama_spark.malamute.client.state_machine.ClientMachine` that asks."""

    def __init__(self) -> None:
        self.questions: dict[int, PendingQuery] = {}  #: that are not answered, by number
        self._records: list[Sequence[bytes]] = []
        self._last_number = 0

    def ask(self, question: LogQuery, deadline: float) -> tuple[PendingQuery, list[bytes]]:
        """The question under a number of its own, and the frames to send.

        :raises BadFrame: it does not fit
        """
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        asked = PendingQuery(replace(question, number=self._last_number), deadline)
        frames = commands.encode(commands.Ping(write(Extension(question=asked.question.pack()))))
        self.questions[self._last_number] = asked
        return asked, frames

    def keep(self, frames: Sequence[bytes]) -> bool:
        """Take what a fetch brings. There is at least one question open."""
        if frames and frames[0].startswith(_DELIVER):
            self._records.append(frames)
            return True
        return False

    def answered(self, packed: bytes) -> None:
        """What came in front of an answer belongs to it, also when nobody waits for it any more."""
        records, self._records = self._records, []
        answer = parse_answer(packed)
        asked = None if answer is None else self.questions.pop(answer.number, None)
        if asked is not None:
            asked.done, asked.answer, asked.records = True, answer, records

    def expire(self, now: float) -> None:
        for number, asked in list(self.questions.items()):
            if asked.deadline <= now:
                del self.questions[number]
                asked.done, asked.error = True, Unavailable("the broker did not answer in time")

    def next_deadline(self) -> float:
        return min((asked.deadline for asked in self.questions.values()), default=float("inf"))

    def give_up(self, error: MamaError) -> None:
        """No answer will come."""
        questions, self.questions = self.questions, {}
        self._records = []
        for asked in questions.values():
            asked.done, asked.error = True, error

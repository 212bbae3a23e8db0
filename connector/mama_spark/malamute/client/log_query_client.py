"""The client's side of log queries (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

A query is not repeated on a new connection: the caller decides. Messages that a fetch returns are kept as frames, so
that they can be decoded in columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mama_spark.contracts.errors import MamaError, Unavailable

from ..protocol import commands
from ..protocol.extensions import Extension, write
from ..protocol.log_query import LogQuery, LogQueryAnswer, parse_answer

_DELIVER = commands.SIGNATURE + bytes([commands.StreamDeliver.id])


@dataclass(slots=True, eq=False)
class PendingQuery:
    """A query that was sent.

    :ivar done: answered or expired
    :ivar error: why there is no answer
    :ivar records: frames of the messages received for the query
    """

    query: LogQuery
    deadline: float
    done: bool = False
    error: MamaError | None = None
    answer: LogQueryAnswer | None = None
    records: list[Sequence[bytes]] = field(default_factory=list)

    def __repr__(self) -> str:
        state = "pending" if not self.done else repr(self.error) if self.error else "done"
        return f"<PendingQuery {self.query.op.name} {state}>"


class LogQueryClient:
    """The queries of one :class:`~mama_spark.malamute.client.state_machine.ClientMachine`."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingQuery] = {}  #: queries without an answer, by number
        self._records: list[Sequence[bytes]] = []
        self._last_number = 0

    def ask(self, query: LogQuery, deadline: float) -> tuple[PendingQuery, list[bytes]]:
        """Register a query; returns it and the frames to send.

        :raises BadFrame: the query does not fit in a frame
        """
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        pending = PendingQuery(replace(query, number=self._last_number), deadline)
        frames = commands.encode(commands.Ping(write(Extension(question=pending.query.pack()))))
        self.pending[self._last_number] = pending
        return pending, frames

    def keep(self, frames: Sequence[bytes]) -> bool:
        """Keep a message of a fetch; False if the frames are no message. Call it while a query is pending."""
        if frames and frames[0].startswith(_DELIVER):
            self._records.append(frames)
            return True
        return False

    def answered(self, packed: bytes) -> None:
        """Finish a query: the messages before its answer belong to it, even if it has expired."""
        records, self._records = self._records, []
        answer = parse_answer(packed)
        pending = None if answer is None else self.pending.pop(answer.number, None)
        if pending is not None:
            pending.done, pending.answer, pending.records = True, answer, records

    def expire(self, now: float) -> None:
        for number, pending in list(self.pending.items()):
            if pending.deadline <= now:
                del self.pending[number]
                pending.done, pending.error = True, Unavailable("the broker did not answer in time")

    def next_deadline(self) -> float:
        return min((pending.deadline for pending in self.pending.values()), default=float("inf"))

    def give_up(self, error: MamaError) -> None:
        """Finish all queries with an error."""
        queries, self.pending = self.pending, {}
        self._records = []
        for pending in queries.values():
            pending.done, pending.error = True, error

"""Answers to the requests of a connection, each by the number of its request at the end of the subject."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count

from mama_spark.contracts.errors import MamaError

from ..protocol.parser import Frame

_REQUEST = b"_"  #: before the number of a request: no id of a batch or token begins so


class ExpectedAnswers:
    """Of one connection, whose inbox the subjects begin with."""

    def __init__(self, inbox: bytes) -> None:
        self._inbox, self._numbers = inbox, count(1)
        self._answered: dict[int, Callable[[Frame], None]] = {}

    def __len__(self) -> int:
        return len(self._answered)

    def expect(self, answered: Callable[[Frame], None]) -> tuple[int, bytes]:
        """A number, and a subject for answers: ``answered`` is called with each, until :meth:`forget`."""
        number = next(self._numbers)
        self._answered[number] = answered
        return number, b"%b%b%d" % (self._inbox, _REQUEST, number)

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._answered.pop(number, None)

    def take(self, frame: Frame) -> bool:
        """Whether it is an answer to a request, awaited or not."""
        last = frame.subject[len(self._inbox) :]
        if not last.startswith(_REQUEST):
            return False
        number = int(last[1:]) if last[1:].isdigit() and len(last) < 20 else 0
        if (answered := self._answered.get(number)) is not None:
            answered(frame)
        return True


class Attempts(contextlib.ExitStack):
    """Requests that are sent again until they are answered: an answer counts, whichever time it was asked for.

    :ivar answers: by subject, payload, and number among equal ones; None: the permissions forbid it
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[str, bytes, int], Frame | MamaError | None] = {}

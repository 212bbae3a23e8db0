"""Requests over a connection, with their answers, and refusals by the permissions."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from mama_spark.contracts.errors import MamaError, Unavailable

from ..error_codes import no_responders
from ..protocol.acks import is_nobody
from ..protocol.parser import Frame

_REQUEST = b"_"  #: prefix of a request's number, unlike any batch id or token
#: A request: its subject, payload and headers.
Request = tuple[str, bytes, dict[str, str] | None]


class ExpectedAnswers:
    """Answers to the requests of a connection, by the request's number, which follows ``inbox`` in the subject."""

    def __init__(self, inbox: bytes) -> None:
        self._inbox, self._numbers = inbox, count(1)
        self._answered: dict[int, Callable[[Frame], None]] = {}

    def __len__(self) -> int:
        return len(self._answered)

    def expect(self, answered: Callable[[Frame], None]) -> tuple[int, bytes]:
        """Number and reply subject of a request: ``answered`` is called with each answer until :meth:`forget`."""
        number = next(self._numbers)
        self._answered[number] = answered
        return number, b"%b%b%d" % (self._inbox, _REQUEST, number)

    def forget(self, number: int) -> None:
        self._answered.pop(number, None)

    def take(self, frame: Frame) -> bool:
        """Whether the frame answers a request, awaited or not."""
        last = frame.subject[len(self._inbox) :]
        if not last.startswith(_REQUEST):
            return False
        number = int(last[1:]) if last[1:].isdigit() and len(last) < 20 else 0
        if (answered := self._answered.get(number)) is not None:
            answered(frame)
        return True


class Denials:
    """Callbacks for denied subjects, called with the kind. Without one for a subject, ``handlers`` are tried with kind
    and subject; true = handled."""

    def __init__(self) -> None:
        self._watches: list[tuple[str, Callable[[str], object]]] = []
        self.handlers: list[Callable[[str, str], bool]] = []

    @contextlib.contextmanager
    def watch(self, subject: str, tell: Callable[[str], object]) -> Iterator[None]:
        watch = subject, tell
        self._watches.append(watch)
        try:
            yield
        finally:
            self._watches.remove(watch)

    def tell(self, kind: str, subject: str) -> bool:
        """Whether a callback or handler took it."""
        watching = [tell for watched, tell in list(self._watches) if watched == subject]
        for tell in watching:
            tell(kind)
        return bool(watching) or any(handled(kind, subject) for handled in list(self.handlers))


class Attempts(contextlib.ExitStack):
    """Requests that are sent again until answered: the answer to any attempt counts.

    :ivar answers: by subject, payload, and number among equal ones; None = forbidden by the permissions
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[str, bytes, int], Frame | MamaError | None] = {}

    def forbid(self, key: tuple[str, bytes, int], _: str) -> None:
        self.answers[key] = None


class RequestConnection(Protocol):
    @property
    def answers(self) -> ExpectedAnswers: ...
    @property
    def denials(self) -> Denials: ...
    def loss(self) -> Callable[[], bool]: ...
    def drive(self, timeout: float, done: Callable[[], bool]) -> None: ...
    def publish(self, subject: str, payload: bytes, reply: bytes, headers: dict[str, str] | None) -> None: ...


class Requests:
    def __init__(self, connection: RequestConnection) -> None:
        self._connection, self._answers, self._denials = connection, connection.answers, connection.denials

    def request(
        self,
        subject: str,
        payload: bytes,
        timeout: float,
        headers: dict[str, str] | None = None,
        attempts: Attempts | None = None,
    ) -> Frame | None:
        """Send a request, or a message that is acknowledged; returns the answer, None if the permissions forbid it.

        :raises NoResponders: no subscriber to the subject
        :raises Unavailable: no answer within ``timeout`` seconds
        """
        answer = self.request_all([(subject, payload, headers)], timeout, attempts)[0]
        if isinstance(answer, MamaError):
            raise answer
        return answer

    def request_all(
        self, requests: Sequence[Request], timeout: float, attempts: Attempts | None = None
    ) -> list[Frame | MamaError | None]:
        """Send requests together; returns their answers in order, each as :meth:`request` returns or raises it.

        :param attempts: the attempts so far; this one is added
        """
        lost, found = self._connection.loss(), list[Frame | MamaError | None]()
        with contextlib.ExitStack() as stack:
            mine = stack.enter_context(Attempts()) if attempts is None else attempts
            keys = _numbered(requests)
            for key, (subject, payload, headers) in zip(keys, requests, strict=True):
                if key not in mine.answers:
                    answered = partial(mine.answers.__setitem__, key)
                    mine.enter_context(self._denials.watch(subject, partial(mine.forbid, key)))
                    try:
                        mine.callback(self._answers.forget, self.ask(subject, payload, headers, answered))
                    except MamaError as e:
                        answered(e)
            self._connection.drive(timeout, lambda: all(key in mine.answers for key in keys) or lost())
            why = "because the connection was lost" if lost() else f"within {timeout:g} s"
            for key in keys:
                subject = key[0]
                answer = mine.answers.pop(key, Unavailable(f"no answer to {subject} {why}"))
                found.append(no_responders(subject) if isinstance(answer, Frame) and is_nobody(answer) else answer)
        return found

    def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, answered: Callable[[Frame], None]
    ) -> int:
        """Send a request and return its number; ``answered`` gets the answers. Unavailable: not connected."""
        number, reply = self._answers.expect(answered)
        try:
            self._connection.publish(subject, payload, reply, headers)
        except MamaError:
            self._answers.forget(number)
            raise
        return number


def _numbered(requests: Sequence[Request]) -> list[tuple[str, bytes, int]]:
    """Subject and payload of each, and the number of equal ones before it, which may have other answers."""
    seen = Counter[tuple[str, bytes]]()
    keys = []
    for subject, payload, _ in requests:
        keys.append((subject, payload, seen[subject, payload]))
        seen[subject, payload] += 1
    return keys

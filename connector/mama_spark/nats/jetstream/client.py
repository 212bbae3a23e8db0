"""Client of the JetStream API (NATS ADR-1), of direct gets, and of single acknowledged publishes (rows:
:mod:`..publish.bridge`).

Requests are repeated by the rule of :mod:`.request_retry`, so each must be safe to arrive twice. What is read of an
answer is read by a class of :mod:`.answers`, or as a message. Bodies of requests stay dictionaries in the API's own
words: the server alone decides, by its version, what they may hold, and a configuration that it told is sent back with
fields that nobody knows here.
"""

from __future__ import annotations

import math
import re
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import orjson

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import MamaError, NoResponders, Unavailable
from mama_spark.publishing.window.retry import may_resend

from .. import error_codes
from ..connection.requests import Attempts, Request
from ..connection.socket_connection import SocketConnection
from ..protocol.acks import is_nobody
from ..protocol.direct_get import StoredMessage, headers_of, stored
from ..protocol.parser import Frame
from ..subjects import to_allow
from .answers import NO_MESSAGE, NO_STREAM, AnsweredError, ApiError, ApiForbidden, StreamInfo, answer_of
from .request_retry import BACKOFF, ServerNotReady, retry

T = TypeVar("T")
#: The frames of an attempt, and whether its connection is lost: what follows then may have holes.
_Try = tuple[list[Frame], Callable[[], bool]]

#: Requests in transit at once.
AT_ONCE = 32
_ONCE = 3.0
#: Time-outs of the attempts over a connection: a stopped server never answers, even if it leads the stream and another
#: one is elected meanwhile; an answer that takes longer counts as well.
_ATTEMPTS = Backoff(1.5, 60.0, 1.25)
_LEFT = re.compile(r"\d+")
#: Expects a last sequence that no stream has: a message with it is stored nowhere, and answered with the right one.
_AFTER_ALL = {"Nats-Expected-Last-Sequence": str(2**63 - 1)}
_EXPECTED = re.compile(r"wrong last sequence: (\d+)")
#: Codes by which nats-server refuses such a message, as it refuses ours, before it compares the sequence: the message
#: exceeds ``max_msg_size``, the stream is sealed, it counts and gets no ``Nats-Incr``, or account or server are full. A
#: full server whose leader is asked again and again gives up the lead each time.
_STORES_NOTHING = (10054, 10109, 10169, 10002, 10023, 10028, 10047)
_PAGE = 2000
_PAGE_BYTES = 8 * 1024 * 1024


class JetStream:
    """Requests over one connection, on the calling thread.

    A direct get (NATS ADR-31) leaves nothing behind and makes no advisory. Any replica may answer it, from what it has:
    each answer is a prefix of the stream without holes.

    :param connection: returns the connection; another one when the last was closed
    :param timeout: seconds that a call may take, repetitions included
    :param attempt_timeout: seconds that one attempt may take at most
    """

    def __init__(
        self, connection: Callable[[], SocketConnection], timeout: float, attempt_timeout: float | None = None
    ) -> None:
        self.connection, self.timeout, self._attempt_timeout = connection, timeout, attempt_timeout

    @property
    def attempt_timeout(self) -> float:
        """Time limit in seconds of a request that is not repeated."""
        return max(_ONCE, self.timeout / 4) if self._attempt_timeout is None else self._attempt_timeout

    def _limits(self) -> Callable[[float], float]:
        """Returns a function: the time limit of a call's next attempt, from the seconds that are left."""
        most = self._attempt_timeout or _ATTEMPTS.most
        first = min(_ATTEMPTS.first, most)
        limits = Backoff(first, most, _ATTEMPTS.factor).delays()
        lost: Callable[[], bool] | None = None

        def limit(left: float) -> float:
            nonlocal lost
            if lost is None or lost():
                limits.reset()
                lost = self.connection().loss()
            return min(limits.next(), max(left, first))

        return limit

    @property
    def prefix(self) -> str:
        return self.connection().api_prefix

    def retry(self, what: str, attempt: Callable[[float], T], timeout: float | None = None) -> T:
        """See :func:`~.request_retry.retry`; ends early when the connection is closed for good."""

        def wait(seconds: float) -> None:
            """Or until a lost connection is restored."""
            connection = self.connection()
            was_up = connection.up
            connection.drive(seconds, lambda: connection.up and not was_up)

        limit = self.timeout if timeout is None else timeout
        return retry(what, attempt, limit, wait, lambda: not self.connection().closed)

    def request(
        self,
        call: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        final: Collection[int] = (),
    ) -> dict[str, Any]:
        """The answer to ``$JS.API.<call>``, or to the same request below the prefix of the connection.

        :param timeout: seconds for this call; None = those of the client
        :param final: ``err_code`` (or ``NO_RESPONDERS``) of errors that are raised at once instead of retried
        :raises ApiForbidden: the permissions do not allow it
        :raises ApiError: the server answers with an error
        :raises Unavailable: no answer within the time limit
        """
        return _value(self._request_group([(call, body)], timeout, final)[0])

    def request_all(self, calls: Sequence[tuple[str, dict[str, Any] | None]]) -> list[dict[str, Any] | MamaError]:
        """The answers in order, :data:`AT_ONCE` requests at a time: each as :meth:`request` returns or raises it."""
        found: list[dict[str, Any] | MamaError] = []
        for first in range(0, len(calls), AT_ONCE):
            found += self._request_group(calls[first : first + AT_ONCE])
        return found

    def _request_group(
        self,
        calls: Sequence[tuple[str, dict[str, Any] | None]],
        timeout: float | None = None,
        final: Collection[int] = (),
    ) -> list[dict[str, Any] | MamaError]:
        subjects = [f"{self.prefix}{call}" for call, _ in calls]
        payloads = [b"" if body is None else orjson.dumps(body) for _, body in calls]
        limit = self._limits()
        found: list[dict[str, Any] | MamaError] = [{} for _ in calls]
        waiting, attempts = list(range(len(calls))), Attempts()

        def attempt(left: float) -> None:
            asked: list[Request] = [(subjects[i], payloads[i], None) for i in waiting]
            answers = self.connection().requests.request_all(asked, min(left, limit(left)), attempts)
            again = []
            for i, answer in zip(waiting, answers, strict=True):
                try:
                    found[i] = read_answer(subjects[i], answer, final)
                except MamaError as e:
                    found[i] = e
                    if may_resend(e):
                        again.append(i)
            waiting[:] = again
            if again:
                _value(found[again[0]])

        with attempts:
            try:
                self.retry(subjects[0] if len(calls) == 1 else f"{len(calls)} requests", attempt, timeout)
            except Unavailable as e:
                for i in waiting:
                    found[i] = e
        return found

    def find(self, call: str, body: dict[str, Any] | None, absent: int) -> dict[str, Any] | None:
        """The answer to :meth:`request`; None if it is the error ``absent``."""
        try:
            return self.request(call, body)
        except ApiError as e:
            if e.code != absent:
                raise
            return None

    def stream(self, name: str, **details: bool) -> StreamInfo | None:
        """The state of the stream; None: there is none of this name."""
        answer = self.find(f"STREAM.INFO.{name}", details or None, NO_STREAM)
        return None if answer is None else StreamInfo.of(answer)

    def message(self, stream: str, **which: str | int) -> StoredMessage | None:
        """The message at the leader of the stream, never stale, by ``seq=n``, ``last_by_subj=s``, or both ``seq=n`` and
        ``next_by_subj=s``; None: no message."""
        answer = self.find(f"STREAM.MSG.GET.{stream}", which, NO_MESSAGE)
        return None if answer is None else message_of(answer)

    def listed(self, call: str, key: str, body: dict[str, Any] | None = None) -> Iterator[Any]:
        """The elements of a list that the server answers page by page; otherwise as :meth:`request`."""
        offset = 0
        while True:
            answer = self.request(call, {"offset": offset, **(body or {})})
            page = answer.get(key) or []
            yield from page
            offset += len(page)
            if not page or offset >= int(answer.get("total", 0)):
                return

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        """Store one message; returns its sequence in the stream.

        :raises ApiForbidden: the permissions do not allow it
        :raises PublishError: the server rejects it
        :raises Unavailable: no acknowledgement within the time limit
        """
        limit, attempts = self._limits(), Attempts()

        def attempt(left: float) -> int:
            reply = self.connection().requests.request(subject, payload, limit(left), headers or None, attempts)
            if reply is None:
                raise ApiForbidden(f"no permission to publish to {subject!r}")
            answer = answer_of(reply.payload)
            if (error := AnsweredError.of(answer)) is not None:
                raise error_codes.from_reply(error.status, error.code, error.text)
            if not isinstance(sequence := answer.get("seq"), int):
                raise Unavailable(f"not an acknowledgement of JetStream: {reply.payload[:100]!r}")
            return sequence

        with attempts:
            return self.retry(f"the publish to {subject!r}", attempt, timeout)

    def decided_last(self, topic: str, ask: Callable[[], StreamInfo], timeout: float | None) -> int:
        """See :class:`~mama_spark.contracts.batch_ledger.BatchLedger`. A leader without a majority proposes what comes
        for up to 20 s, forgets ids of it after the duplicate window, and stores all of it when it has a majority again
        (nats-server 2.15.1). A new leader says where the stream ends before it has applied what the others have.

        :param topic: topic that the stream takes
        :param ask: returns the state of the stream from its leader
        :param timeout: seconds; None = those of all calls
        """
        limit, taken = self._limits(), math.inf

        def attempt(left: float) -> int:
            nonlocal taken
            taken = min(taken, self._taken(topic, limit(left)))  # messages that a leader has taken may be lost
            last = ask().last
            if last < taken:
                raise Unavailable(f"the leader has taken messages up to {taken}, and stored those up to {last}")
            return last

        return self.retry(f"what the stream of {topic!r} has stored", attempt, timeout)

    def _taken(self, topic: str, timeout: float) -> int:
        """Last sequence of a stream once all that its leader has proposed is stored, from its refusal of a message that
        expects another one; 0 = it stores nothing of ours. NoResponders, Unavailable: no answer, or one without it."""
        reply = self.connection().requests.request(topic, b"", timeout, _AFTER_ALL)
        error = None if reply is None else AnsweredError.of(answer_of(reply.payload))
        if error is None:
            raise ApiForbidden(f"no permission to publish to {topic!r}")
        found = _EXPECTED.search(error.text)
        if found is None and error.code not in _STORES_NOTHING:
            refusal = error_codes.from_reply(error.status, error.code, error.text)
            raise Unavailable(f"the leader does not say what it has taken: {refusal}")
        return 0 if found is None else int(found[1])

    # --- direct gets ----------------------------------------------------------------------------------------------

    def serves_direct_gets(self, stream: str) -> bool:
        """Whether direct gets from the stream are answered: one request, no advisory. Unavailable: no answer."""
        try:
            self.connection().requests.request(self._direct(stream), b'{"seq":1}', self.attempt_timeout)
        except NoResponders:
            return False
        return True

    def get(self, stream: str, timeout: float | None = None, **which: str | int) -> StoredMessage | None:
        """The message of :meth:`message`, by a direct get."""
        subject, payload, limit, attempts = self._direct(stream), orjson.dumps(which), self._limits(), Attempts()

        def attempt(left: float) -> StoredMessage | None:
            reply = self.connection().requests.request(subject, payload, limit(left), None, attempts)
            if reply is None:
                raise _forbidden(stream, subject)
            found = stored(dict(reply.headers), reply.payload)
            if found is None and reply.status != 404:
                raise Unavailable(f"{reply.status} {reply.status_text} {reply.headers}")
            return found

        with attempts:
            return self.retry(f"the direct get from the stream {stream!r}", attempt, timeout)

    def get_many(self, stream: str, **body: Any) -> tuple[list[StoredMessage], int]:
        """The messages of one multi-message direct get, and how many are left. May raise :class:`ApiForbidden`."""

        limit, tries = self._limits(), list[_Try]()

        def attempt(left: float) -> tuple[list[StoredMessage], int]:
            *frames, end = self._frames(stream, body, tries, attempts, limit(left))
            if not _ends(end):
                raise Unavailable("it broke off")
            if is_nobody(end):
                raise error_codes.no_responders(end.subject.decode(errors="replace"))
            if end.status not in (204, 404):
                raise Unavailable(f"{end.status} {end.status_text}")
            left_over = _LEFT.fullmatch(dict(end.headers).get("Nats-Num-Pending", ""))
            messages = (stored(dict(frame.headers), frame.payload) for frame in frames)
            found = [message for message in messages if message is not None]
            return found, 0 if left_over is None else int(left_over[0])

        with Attempts() as attempts:
            return self.retry(f"the read of the stream {stream!r}", attempt)

    def _frames(
        self, stream: str, body: dict[str, Any], tries: list[_Try], attempts: Attempts, begins: float
    ) -> list[Frame]:
        """Frames of the first whole answer, else of the last one; the last frame ends it, unless it broke off.

        :param tries: one for each attempt, which may still be answered
        :param begins: seconds to wait for the first frame; the replica that has the request may stand still
        """
        subject, connection, silence = self._direct(stream), self.connection(), begins
        told: list[bool] = []
        frames, lost = list[Frame](), connection.loss()
        tries.append((frames, lost))

        def whole() -> list[_Try]:
            return [one for one in tries if one[0] and _ends(one[0][-1]) and not one[1]()]

        with connection.denials.watch(subject, lambda _: told.append(True)):
            attempts.callback(
                connection.answers.forget, connection.requests.ask(subject, orjson.dumps(body), None, frames.append)
            )
            before = -1
            while before < (come := sum(len(one) for one, _ in tries)) and not (told or lost() or whole()):
                before = come
                connection.drive(silence, lambda: bool(told or lost() or whole()))
                silence = max(begins, self.attempt_timeout)
        if told:
            raise _forbidden(stream, subject)
        for one in whole()[:1]:
            tries.remove(one)
            return one[0]
        if not frames:
            raise Unavailable("it broke off")
        return frames

    def _direct(self, stream: str) -> str:
        return f"{self.prefix}DIRECT.GET.{stream}"

    def first_and_last(self, stream: str) -> tuple[int, int]:
        """Sequences of the first message and of the last one ever stored: N + 1 and N where the stream was emptied,
        (0, 0) where nothing was ever stored."""
        first = self.get(stream, seq=1, next_by_subj=">")
        last = self.get(stream, last_by_subj=">")
        if first is not None and last is not None:
            return first.sequence, max(first.sequence, last.sequence)
        info = self.stream(stream)
        return (0, 0) if info is None else (info.first, info.last)

    def pages(
        self, stream: str, after: int, subject: str, up_to: int | None = None, *, beyond: bool = False
    ) -> Iterator[list[StoredMessage]]:
        """Messages behind sequence ``after`` on ``subject`` (wildcards), to the end or ``up_to``, and perhaps beyond in
        the last page.

        With ``up_to``, it reads until a message at or beyond it, or the last one of the leader: a replica may lack it.

        :param beyond: then read on to the end, where records that were rewritten meanwhile are
        """
        now = time.monotonic
        until, delays = now() + self.timeout, BACKOFF.delays()
        while True:
            messages, pending = self.get_many(
                stream, seq=after + 1, next_by_subj=subject, batch=_PAGE, max_bytes=_PAGE_BYTES
            )
            if messages:
                yield messages
                after, until = messages[-1].sequence, now() + self.timeout
                delays.reset()
            if up_to is not None and after >= up_to and not (beyond and pending):
                return
            if pending:
                continue
            last = None if up_to is None else self.message(stream, last_by_subj=subject)
            if last is None or last.sequence <= after:
                return
            if now() > until:
                raise Unavailable(f"no replica of the stream {stream!r} has sequence {last.sequence} yet")
            time.sleep(delays.next())


def message_of(answer: dict[str, Any]) -> StoredMessage:
    found = answer["message"]
    block = b64decode(found.get("hdrs", ""))
    payload = b64decode(found.get("data", ""))
    return StoredMessage(int(found["seq"]), found["time"], found["subject"], payload, headers_of(block), block)


def _value(answer: dict[str, Any] | MamaError) -> dict[str, Any]:
    if isinstance(answer, MamaError):
        raise answer
    return answer


def read_answer(subject: str, answer: Frame | MamaError | None, final: Collection[int]) -> dict[str, Any]:
    """The JSON object of an answer. MamaError: no answer, or an error."""
    if isinstance(answer, NoResponders) and error_codes.NO_RESPONDERS in final:
        raise ApiError("nobody listens to the JetStream API", error_codes.NO_RESPONDERS) from answer
    if isinstance(answer, MamaError):
        raise answer
    if answer is None:
        raise ApiForbidden(f"no permission to publish to {subject}; allow publish to {to_allow(subject)!r}")
    body = answer_of(answer.payload)
    error = AnsweredError.of(body)
    if error is None:
        return body
    passes = error.status >= 500 and error_codes.from_reply(error.status, error.code, error.text).retryable
    if not passes or error.code in final:
        raise ApiError(f"{error.text} ({subject})", error.code, error.text)
    raise ServerNotReady(error.text, error.code)


def _ends(frame: Frame) -> bool:
    """Whether this frame ends an answer to a direct get; a message of the stream, perhaps with a status, does not."""
    return frame.status != 0 and stored(dict(frame.headers), b"") is None


def _forbidden(stream: str, subject: str) -> ApiForbidden:
    return ApiForbidden(f"no permission for {subject!r}: the stream {stream!r} cannot be read")

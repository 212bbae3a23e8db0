"""Log queries over one pooled connection, repeated over another when it is lost; and fetches of a stored range."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.contracts.record_log import Bounds
from mama_spark.malamute.client.calls import PendingQuery, refused
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.malamute.protocol.log_query import (
    FETCH_BYTES,
    FETCH_ROWS,
    LOOK,
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_numbers,
)

from .pool import POOL, PooledConnection
from .settings import MalamuteSettings

T = TypeVar("T")
#: Most messages that ZeroMQ holds; each fetch limits their bytes.
_HIGH_WATER = 10_000
_ENDED = (ClientState.CLOSED, ClientState.FAILED)
#: Before a query is sent again that failed although there is a connection.
RETRY = Backoff(0.05, 0.05)


class LogQueries:
    """One connection for queries. One thread opens and closes it.

    :cvar features: features that the client announces: no subscriptions, so no credit
    :cvar needs: features that the broker must have, and the error text about a broker without them
    :param timeout: seconds without an answer before :class:`~mama_spark.contracts.errors.Unavailable`
    """

    features: ClassVar[Feature] = Feature.LOG | Feature.SEQUENCE | Feature.HEADERS
    needs: ClassVar[tuple[Feature, str]] = (
        Feature.LOG,
        "NOT_IMPLEMENTED: the broker at %s keeps nothing that could be read back. Reading needs mama broker with a "
        "durable stream; other brokers of the protocol forget a message once it is delivered",
    )

    def __init__(self, settings: MalamuteSettings, timeout: float) -> None:
        connection = replace(settings.connection, features=self.features, high_water=_HIGH_WATER)
        self.settings, self.timeout = replace(settings, connection=connection), timeout
        self._pooled: PooledConnection | None = None

    def open(self) -> None:
        """Connect to the broker and check its features.

        :raises ConfigError: the broker refuses this client, or lacks a needed feature
        :raises Unavailable: no broker answers
        """
        pooled = POOL.checkout(self.settings.connection, min(self.timeout, self.settings.connect_timeout))
        try:
            self._check_features(pooled.connection)
        except ConfigError:
            pooled.connection.close(0.0)
            raise
        self._pooled = pooled

    def _check_features(self, connection: ClientConnection) -> None:
        needed, text = self.needs
        if needed & ~connection.machine.features:
            raise ConfigError(text % connection.endpoint)

    def close(self) -> None:
        """Give the connection back; never raises."""
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            POOL.give_back(pooled)

    @property
    def is_open(self) -> bool:
        return self._pooled is not None

    @property
    def connection(self) -> ClientConnection:
        """The open connection to the broker.

        :raises ClientClosed: not open
        """
        if self._pooled is None:
            raise ClientClosed("the bridge is not open")
        return self._pooled.connection

    def ask(self, query: LogQuery) -> LogQueryAnswer:
        """The answer, over another connection if the first is lost meanwhile: a query changes nothing.

        :raises ConfigError: the user must change something; the text says what
        :raises Unavailable: no broker answers
        """
        return self.asked(query)[0]

    def asked(self, query: LogQuery) -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
        """The answer of :meth:`ask`, and the messages that came with it."""
        until = time.monotonic() + self.timeout

        def attempt() -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
            pending = self.send(query, until)
            return self.wait(pending), pending.records

        return self.retried(attempt, until)

    def bounds(self, stream: bytes) -> Bounds:
        answer = self.ask(LogQuery(Op.BOUNDS, 0, stream))
        (first, last), _ = parse_numbers(answer.body, 2)
        return Bounds(first, last, answer.identity.decode("utf-8", "replace"))

    def retried(self, attempt: Callable[[], T], until: float) -> T:
        """The result of the first attempt that succeeds; the next one is made when there is a connection.

        :raises Unavailable: none did before this time (monotonic)
        """
        while True:
            try:
                return attempt()
            except Unavailable as e:
                self.wait_for_connection(until, e)

    def send(self, query: LogQuery, until: float) -> PendingQuery:
        """Send a query without waiting for the answer.

        :param until: deadline (monotonic seconds)
        :raises Unavailable: not connected now
        """
        connection = self.connection
        if connection.connected:
            self._check_features(connection)
        try:
            return connection.ask(query, until)
        except BadFrame as e:
            raise ConfigError(f"{_subject(query, connection)}: {e}") from e
        except Unavailable as e:
            raise Unavailable(connection.explain("asking", str(e))) from e

    def wait(self, pending: PendingQuery) -> LogQueryAnswer:
        """The answer to a query that was sent.

        :raises ConfigError: it is an error that another attempt will not mend
        :raises Unavailable: there is none, or an error that may pass
        """
        connection, query = self.connection, pending.query
        try:
            answer = connection.wait_for_answer(pending)
        except Unavailable as e:
            raise Unavailable(connection.explain("asking", str(e))) from e
        if answer.code == StatusCode.SUCCESS:
            return answer
        text = f"{_subject(query, connection)}: {answer.reason.decode('utf-8', 'replace')}"
        raise refused(answer.code, f"NOT_IMPLEMENTED: {text}" if answer.code == StatusCode.NOT_IMPLEMENTED else text)

    def wait_for_connection(self, until: float, error: Unavailable) -> None:
        """Wait until the client is connected again.

        :raises Unavailable: ``error``, when the deadline has passed
        """
        connection = self.connection
        with connection.changed:
            connection.changed.wait_for(
                lambda: connection.connected or connection.fatal is not None or connection.machine.state in _ENDED,
                max(0.0, until - time.monotonic()),
            )
            if connection.fatal is not None:
                raise connection.fatal from error
            connected = connection.connected
        if not connected or time.monotonic() > until:
            raise error
        time.sleep(min(RETRY.delay(0), max(0.0, until - time.monotonic())))


def _subject(query: LogQuery, connection: ClientConnection) -> str:
    name = query.stream.decode("utf-8", "replace")
    return f"stream {name!r} at {connection.endpoint}" if query.op is not Op.NAMES else connection.endpoint


#: Fetches that are sent at a time: the broker makes one while another travels and a third is decoded.
AHEAD = 3


@dataclass(slots=True)
class _Part:
    after: int
    up_to: int
    pending: PendingQuery


class ReadSession:
    """Splits a range of sequences into fetches, so that answers are full and come in order; it sends none itself. An
    answer is limited in bytes: the rest of an unfinished part is queried before the parts that were queried meanwhile.

    :param ids: fetch ids that begin with this only, instead of messages
    """

    def __init__(
        self, after: int, up_to: int, selection: Selection, texts: tuple[bytes, ...], *, ids: bytes | None = None
    ) -> None:
        self.parts: deque[_Part] = deque()
        self._done, self._end = after, up_to  # all up to ``_done`` is read
        self._next = after
        self._selection, self._texts = selection, texts
        self._op, self._prefix = (Op.BLOCK, b"") if ids is None else (Op.IDS, ids)
        self._rows = FETCH_ROWS if ids is None else LOOK
        self._end_known = False
        self._width = FETCH_ROWS
        self._rest: tuple[int, int] | None = None
        self._queried: list[tuple[int, int]] = []

    @property
    def complete(self) -> bool:
        return self._done >= self._end

    def queries(self, stream: bytes) -> Iterator[LogQuery]:
        """Queries to be sent now; call :meth:`sent` for each before the next."""
        while True:
            if self._rest is not None:
                low, high = self._rest
            elif self._next < self._end and len(self.parts) < (AHEAD if self._end_known else 1):
                low, high = self._next, min(self._next + self._width, self._end)
            else:
                return
            self._queried = [(low, high)]
            numbers = (low, high, self._rows, FETCH_BYTES)
            yield LogQuery(self._op, 0, stream, numbers, self._prefix, self._selection, self._texts)

    def sent(self, pending: PendingQuery) -> None:
        part = _Part(*self._queried.pop(), pending)
        if self._rest is not None:
            self._rest = None
            self.parts.appendleft(part)
        else:
            self.parts.append(part)
            self._next = part.up_to

    def take(self, answer: LogQueryAnswer) -> None:
        part = self.parts.popleft()
        (reached, last), _ = parse_numbers(answer.body, 2)
        if not self._end_known:
            self._end_known, self._end = True, min(self._end, last)
        whole = reached >= min(part.up_to, self._end)
        self._done = max(self._done, min(part.up_to, self._end) if whole else reached)
        examined = max(1, reached - part.after)
        if whole:
            most = self._rows if self._selection is Selection.ALL else LOOK
            self._width = min(most, max(self._width, 2 * examined))
        else:
            self._width = max(1, examined * 7 // 8)
            self._rest = (reached, part.up_to)

    def restart(self) -> None:
        """The connection was lost: query again what was not answered."""
        self.parts.clear()
        self._rest, self._next = None, self._done

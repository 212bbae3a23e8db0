"""Reads and stores discovery messages in a broker's event stream, over one connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ClientClosed, ConfigError, OutOfResources, Unavailable
from mama_spark.contracts.record_log import Bounds
from mama_spark.malamute.client.calls import CallFailed, refused
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import StatusCode, StreamSend, StreamWrite, encode
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome, write
from mama_spark.malamute.protocol.log_query import (
    FETCH_BYTES,
    FETCH_ROWS,
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_numbers,
)

from .codec import DiscoveryCodec, DiscoveryMessage, StoredRecord, stored

T = TypeVar("T")

FEATURES = Feature.SEQUENCE | Feature.ACKS | Feature.HEADERS | Feature.LOG | Feature.DISCOVERY
#: Most messages of one part, and bytes of them; a part that fails is sent again as a whole, in order.
PART_MESSAGES = 1000
PART_BYTES = 1024 * 1024
#: Between two attempts while the broker is away or the stream is starting.
RETRY = Backoff(0.05, 0.05)
_END = 2**62


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Settings of one client; times in seconds.

    :param outage_timeout: that an outage may last before a call fails
    :param answer_timeout: that one request may take
    :param name: bridges of one process with the same name, broker and codec share their renewals
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    codec: DiscoveryCodec = field(default_factory=DiscoveryCodec)
    outage_timeout: float = 30.0
    answer_timeout: float = 5.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """One page of stored messages.

    :ivar identity: of the stream; another when it was deleted and created again
    :ivar reached: everything up to this sequence was examined
    :ivar last: sequence of the newest message
    """

    identity: str
    reached: int
    last: int
    messages: list[StoredRecord]


class DiscoveryClient:
    """One connection; thread-safe once it is open."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings = settings
        self._stream = settings.codec.events.encode()
        self._connection: ClientConnection | None = None
        self._writing = threading.Lock()  # or one thread's PONG would acknowledge the other's messages

    def open(self) -> None:
        """:raises ConfigError: the broker keeps no discovery, or the login is refused
        :raises Unavailable: no broker answers
        """
        settings = self.settings
        connection = ClientConnection(replace(settings.connection, address="", features=FEATURES))
        try:
            connection.open(settings.answer_timeout)
            missing = FEATURES & ~connection.machine.features
            if missing:
                raise ConfigError(
                    f"NOT_IMPLEMENTED: the broker at {connection.endpoint} keeps no discovery: that needs mama broker "
                    "with a folder in the table [events] of its configuration"
                )
            with connection.changed:
                call = connection.machine.call(StreamWrite(self._stream), time.monotonic() + settings.answer_timeout)
            connection.wait(call, f"writing to {settings.codec.events!r}")
        except CallFailed as e:
            connection.close(0.0)
            raise refused(e.code, f"{connection.endpoint}: {e}") from e
        except BaseException:
            connection.close(0.0)
            raise
        self._connection = connection

    def close(self, timeout: float = 1.0) -> None:
        """Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(timeout if connection.connected else 0.0)

    def _require_connection(self) -> ClientConnection:
        if self._connection is None:
            raise ClientClosed("discovery is not open")
        return self._connection

    def bounds(self) -> Bounds:
        answer, _ = self._ask(Op.BOUNDS, ())
        (first, last), _ = parse_numbers(answer.body, 2)
        return Bounds(first, last, answer.identity.decode())

    def fetch(self, after: int, up_to: int, subjects: Sequence[str] = ()) -> Iterator[FoundMessages]:
        """Pages of the messages in ``after < sequence <= up_to``, in order."""
        return self._pages(Op.FETCH, after, up_to, subjects)

    def current(self, subjects: Sequence[str] = ()) -> FoundMessages:
        """The current message of all subjects (or these), as of sequence ``last`` of the stream."""
        pages = self._pages(Op.STANDING, 0, _END, subjects)
        first = next(pages)
        found = list(first.messages)
        if first.reached < first.last:  # changes meanwhile have higher sequences, and are read as changes
            found += [
                one for page in self._pages(Op.STANDING, first.reached, first.last, subjects) for one in page.messages
            ]
        return FoundMessages(first.identity, first.last, first.last, found)

    def _pages(self, op: Op, after: int, up_to: int, subjects: Sequence[str]) -> Iterator[FoundMessages]:
        selection = Selection.SUBJECTS if subjects else Selection.ALL
        texts = tuple(subject.encode() for subject in subjects)
        while True:
            answer, records = self._ask(op, (after, up_to, FETCH_ROWS, FETCH_BYTES), selection, texts)
            (reached, last), _ = parse_numbers(answer.body, 2)
            messages = [one for frames in records if (one := stored(frames)) is not None]
            yield FoundMessages(answer.identity.decode(), reached, last, messages)
            if reached >= min(up_to, last) or reached <= after:
                return
            after = reached

    def _ask(
        self, op: Op, numbers: tuple[int, ...], selection: Selection = Selection.ALL, texts: tuple[bytes, ...] = ()
    ) -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
        query = LogQuery(op, 0, self._stream, numbers, selection=selection, texts=texts)

        def attempt() -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
            connection = self._require_connection()
            pending = connection.ask(query, time.monotonic() + self.settings.answer_timeout)
            answer = connection.wait_for_answer(pending)
            if answer.code != StatusCode.SUCCESS:
                raise refused(answer.code, f"{connection.endpoint}: {answer.reason.decode('utf-8', 'replace')}")
            return answer, pending.records

        return self._retry(attempt, self.settings.outage_timeout)

    def _retry(self, attempt: Callable[[], T], timeout: float) -> T:
        """The result of the first attempt that succeeds.

        :raises Unavailable: none did within ``timeout`` seconds, or the connection has ended
        """
        until, delays = time.monotonic() + timeout, RETRY.delays()
        while True:
            connection = self._require_connection()
            try:
                return attempt()
            except Unavailable as e:
                if time.monotonic() >= until or connection.fatal is not None:
                    raise Unavailable(connection.explain("discovery", str(e))) from e
            time.sleep(delays.next())

    def put(self, messages: Sequence[DiscoveryMessage], timeout: float | None = None) -> list[AckRun]:
        """Store messages, in order; the outcome of each. Messages with an id may be put again.

        :raises Unavailable: no broker answers; some may be stored
        """
        found: list[AckRun] = []
        while len(found) < len(messages):
            part = _part(messages, len(found))
            wait = self.settings.outage_timeout if timeout is None else timeout
            with self._writing:
                found += self._retry(partial(self._put, part), wait)
        return found

    def _put(self, messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
        connection = self._require_connection()
        with connection.changed:
            machine, epoch = connection.machine, connection.machine.reconnects
            if machine.registered.stream != self._stream:
                raise Unavailable("the broker has not opened the stream yet")
            machine.send_frames(
                [encode(StreamSend(m.subject.encode(), [m.content], write(m.extension))) for m in messages]
            )
            call = machine.ping(time.monotonic(), time.monotonic() + self.settings.answer_timeout)
        connection.wait(call, "discovery")
        if epoch != connection.machine.reconnects:
            raise Unavailable("the connection was lost before the messages were acknowledged")
        found = [
            AckRun(run.outcome, 1, run.first + i if run.first else 0)
            for run in call.extension.acks
            for i in range(run.count)
        ]
        if len(found) != len(messages):
            raise Unavailable("the broker did not report the outcome of each message")
        return found

    def store(self, messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
        """As :meth:`put`.

        :raises OutOfResources: one of them is not stored
        """
        runs = self.put(messages)
        refused = [m for m, run in zip(messages, runs, strict=True) if run.outcome is StoreOutcome.REFUSED]
        if refused:
            text = f"the broker did not store {len(refused)} of {len(messages)} records of discovery"
            raise OutOfResources(f"{text}; the first on {refused[0].subject!r}")
        return runs


def _part(messages: Sequence[DiscoveryMessage], start: int) -> Sequence[DiscoveryMessage]:
    size = 0
    for at in range(start, min(len(messages), start + PART_MESSAGES)):
        size += len(messages[at].content)
        if size > PART_BYTES and at > start:
            return messages[start:at]
    return messages[start : start + PART_MESSAGES]

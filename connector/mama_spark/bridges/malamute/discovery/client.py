"""The conversation with a broker about discovery: what is stored there, what stands there, and more of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mama_spark.errors import ClientClosed, ConfigError, OutOfResources, Unavailable
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.connection import ClientConnection
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome
from mama_spark.malamute.protocol.log_query import (
    FETCH_OCTETS,
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
#: Messages, and octets of them, that go together; what fails is sent again with all that follows it, in order.
TOGETHER = 1000
TOGETHER_OCTETS = 1024 * 1024
_PAUSE = 0.05
_END = 2**62


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Times in seconds.

    :param link: how the broker is reached
    :param patience: that an outage may last before a call fails
    :param answer: after which an answer is not waited for any more
    :param name: bridges of one process with the same name, broker and words share what they keep alive
    """

    link: ConnectionSettings = field(default_factory=ConnectionSettings)
    words: DiscoveryCodec = field(default_factory=DiscoveryCodec)
    patience: float = 30.0
    answer: float = 5.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """:ivar identity: of the stream; another when it was deleted and made again
    :ivar reached: everything up to this number was looked at
    :ivar last: number of the newest message
    """

    identity: str
    reached: int
    last: int
    messages: list[StoredRecord]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What the stream holds: see :class:`~mama_spark.record_log.Bounds`."""

    identity: str
    first: int
    last: int


class DiscoveryClient:
    """One connection; thread-safe once it is open."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings = settings
        self._stream = settings.words.events.encode()
        self._link: ClientConnection | None = None
        self._writing = threading.Lock()  # or the answer to one would tell of the other's

    def __repr__(self) -> str:
        return f"<DiscoveryClient {'closed' if self._link is None else self._link.endpoint}>"

    def open(self) -> None:
        """:raises ConfigError: the broker keeps no discovery, or the login is refused
        :raises Unavailable: nobody answers
        """
        settings = self.settings
        link = ClientConnection(replace(settings.link, address="", features=FEATURES))
        try:
            link.open(settings.answer)
            missing = FEATURES & ~link.machine.features
            if missing:
                raise ConfigError(
                    f"NOT_IMPLEMENTED: the broker at {link.endpoint} keeps no discovery: that needs mama broker with a "
                    "folder in the table [events] of its configuration"
                )
            with link.changed:
                call = link.machine.write(self._stream, time.monotonic() + settings.answer)
            link.wait(call, f"writing to {settings.words.events!r}")
        except CallFailed as e:
            link.close(0.0)
            kind = Unavailable if e.code == StatusCode.INTERNAL_ERROR else ConfigError
            raise kind(f"{link.endpoint}: {e}") from e
        except BaseException:
            link.close(0.0)
            raise
        self._link = link

    def close(self, timeout: float = 1.0) -> None:
        """Never raises."""
        link, self._link = self._link, None
        if link is not None:
            link.close(timeout if link.connected else 0.0)

    def _open_link(self) -> ClientConnection:
        if self._link is None:
            raise ClientClosed("discovery is not open")
        return self._link

    # --- reading ---------------------------------------------------------------------------------------------------

    def extent(self) -> LogBounds:
        answer, _ = self._ask(Op.BOUNDS, ())
        (first, last), _ = parse_numbers(answer.body, 2)
        return LogBounds(answer.identity.decode(), first, last)

    def fetch(self, after: int, up_to: int, subjects: Sequence[str] = ()) -> Iterator[FoundMessages]:
        """What lies in ``after < sequence <= up_to``, in order and piece by piece."""
        return self._pages(Op.FETCH, after, up_to, subjects)

    def standing(self, subjects: Sequence[str] = ()) -> FoundMessages:
        """What stands at all subjects (or these) at one moment: at number ``last`` of the stream."""
        pages = self._pages(Op.STANDING, 0, _END, subjects)
        first = next(pages)
        found = list(first.messages)
        if first.reached < first.last:  # what changes meanwhile has a higher number: it is told as a change
            found += [
                one for page in self._pages(Op.STANDING, first.reached, first.last, subjects) for one in page.messages
            ]
        return FoundMessages(first.identity, first.last, first.last, found)

    def _pages(self, op: Op, after: int, up_to: int, subjects: Sequence[str]) -> Iterator[FoundMessages]:
        selection = Selection.SUBJECTS if subjects else Selection.ALL
        texts = tuple(subject.encode() for subject in subjects)
        while True:
            answer, records = self._ask(op, (after, up_to, FETCH_ROWS, FETCH_OCTETS), selection, texts)
            (reached, last), _ = parse_numbers(answer.body, 2)
            messages = [one for frames in records if (one := stored(frames)) is not None]
            yield FoundMessages(answer.identity.decode(), reached, last, messages)
            if reached >= min(up_to, last) or reached <= after:
                return
            after = reached

    def _ask(
        self,
        op: Op,
        numbers: tuple[int, ...],
        selection: Selection = Selection.ALL,
        texts: tuple[bytes, ...] = (),
    ) -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
        question = LogQuery(op, 0, self._stream, numbers, selection=selection, texts=texts)

        def once() -> tuple[LogQueryAnswer, list[Sequence[bytes]]]:
            link = self._open_link()
            with link.changed:
                asked = link.machine.ask(question, time.monotonic() + self.settings.answer)
            link.wake()
            with link.changed:
                link.changed.wait_for(lambda: asked.done or link.fatal is not None)
            if asked.error is not None or asked.answer is None:
                raise asked.error or link.fatal or Unavailable("the broker did not answer")
            if asked.answer.code != StatusCode.SUCCESS:
                kind = Unavailable if asked.answer.code == StatusCode.INTERNAL_ERROR else ConfigError
                raise kind(f"{link.endpoint}: {asked.answer.reason.decode('utf-8', 'replace')}")
            return asked.answer, asked.records

        return self._patiently(once, self.settings.patience)

    def _patiently(self, work: Callable[[], T], patience: float) -> T:
        """Again and again while it may help."""
        until = time.monotonic() + patience
        while True:
            link = self._open_link()
            try:
                return work()
            except Unavailable as e:
                if time.monotonic() >= until or link.fatal is not None:
                    raise Unavailable(link.explain("discovery", str(e))) from e
            time.sleep(_PAUSE)  # not connected, or the stream may be starting

    # --- writing ---------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[DiscoveryMessage], patience: float | None = None) -> list[AckRun]:
        """Store messages, in order; what became of each. Those with an id may be put again.

        :raises Unavailable: nobody answers; some may be stored
        """
        found: list[AckRun] = []
        while len(found) < len(messages):
            part = _part(messages, len(found))
            wait = self.settings.patience if patience is None else patience
            with self._writing:
                found += self._patiently(lambda part=part: self._put(part), wait)  # type: ignore[misc]
        return found

    def _put(self, messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
        link = self._open_link()
        with link.changed:
            machine, epoch = link.machine, link.machine.reconnects
            if machine.stream != self._stream:
                raise Unavailable("the broker has not opened the stream yet")
            for message in messages:
                machine.send(message.subject.encode(), [message.content], message.extension)
            call = machine.ping(time.monotonic(), time.monotonic() + self.settings.answer)
        link.wait(call, "discovery")
        if epoch != link.machine.reconnects:
            raise Unavailable("the connection was lost behind messages")
        found = [
            AckRun(run.outcome, 1, run.first + i if run.first else 0)
            for run in call.extension.acks
            for i in range(run.count)
        ]
        if len(found) != len(messages):
            raise Unavailable("the broker did not say what became of each message")
        return found

    def store(self, messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
        """Store them all; as :meth:`put`.

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
    for at in range(start, min(len(messages), start + TOGETHER)):
        size += len(messages[at].content)
        if size > TOGETHER_OCTETS and at > start:
            return messages[start:at]
    return messages[start : start + TOGETHER]

"""Reads and stores discovery messages in a broker's event stream, over one connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mama_spark.contracts.errors import OutOfResources, Unavailable
from mama_spark.malamute.client.calls import CallFailed, refused
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.commands import StreamSend, StreamWrite, encode
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome, write
from mama_spark.malamute.protocol.log_query import FETCH_BYTES, FETCH_ROWS, LogQuery, Op, Selection, parse_numbers

from ..log_queries import LogQueries
from ..settings import MalamuteSettings
from .codec import DiscoveryCodec, DiscoveryMessage, StoredRecord, stored

#: Most messages of one part, and bytes of them; a part that fails is sent again as a whole, in order.
PART_MESSAGES = 1000
PART_BYTES = 1024 * 1024
_END = 2**62


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Settings of one client; times in seconds. ``outage_timeout``: of an outage after which a call fails. Bridges of
    one process with the same ``name``, broker and codec share their renewals."""

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    codec: DiscoveryCodec = field(default_factory=DiscoveryCodec)
    outage_timeout: float = 30.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """One page of stored messages: everything up to sequence ``reached`` was examined, ``last`` is that of the newest.
    ``identity`` is that of the stream: another when it was deleted and created again."""

    identity: str
    reached: int
    last: int
    messages: list[StoredRecord]


class DiscoveryClient(LogQueries):
    """Thread-safe while it is open."""

    features = Feature.SEQUENCE | Feature.ACKS | Feature.HEADERS | Feature.LOG | Feature.DISCOVERY
    needs = (
        features,
        "NOT_IMPLEMENTED: the broker at %s keeps no discovery: that needs mama broker with a folder in the table "
        "[events] of its configuration",
    )

    def __init__(self, settings: DiscoverySettings) -> None:
        connection = replace(settings.connection, address="")
        super().__init__(MalamuteSettings(connection, settings.codec.events), settings.outage_timeout)
        self._stream = settings.codec.events.encode()
        self._writing = threading.Lock()  # or one thread's PONG would acknowledge the other's messages

    def open(self) -> None:
        """See :class:`LogQueries`. Opens the stream, which makes it where it is missing: queries make none."""
        super().open()
        try:
            connection = self.connection
            with connection.changed:
                deadline = time.monotonic() + self.settings.connect_timeout
                opening = connection.machine.call(StreamWrite(self._stream), deadline)
            connection.wait(opening, f"writing to {self.settings.stream!r}")
        except CallFailed as e:
            self.close()
            raise refused(e.code, f"{connection.endpoint}: {e}") from e
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, instead of giving it to the next client: it writes to one stream. Never raises."""
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            pooled.connection.close(1.0 if pooled.connection.connected else 0.0)

    def current(self, subjects: Sequence[str] = ()) -> FoundMessages:
        """The current message of all subjects (or these), as of sequence ``last`` of the stream."""
        first = next(self.fetch(0, _END, subjects, Op.STANDING))
        found = list(first.messages)
        if first.reached < first.last:  # changes meanwhile have higher sequences, and are read as changes
            rest = self.fetch(first.reached, first.last, subjects, Op.STANDING)
            found += [one for page in rest for one in page.messages]
        return FoundMessages(first.identity, first.last, first.last, found)

    def fetch(self, after: int, up_to: int, subjects: Sequence[str] = (), op: Op = Op.FETCH) -> Iterator[FoundMessages]:
        """Pages of the messages in ``after < sequence <= up_to``, in order; ``STANDING``: of the current ones."""
        selection = Selection.SUBJECTS if subjects else Selection.ALL
        texts = tuple(subject.encode() for subject in subjects)
        while True:
            numbers = (after, up_to, FETCH_ROWS, FETCH_BYTES)
            answer, records = self.asked(LogQuery(op, 0, self._stream, numbers, b"", selection, texts))
            (reached, last), _ = parse_numbers(answer.body, 2)
            messages = [one for frames in records if (one := stored(frames)) is not None]
            yield FoundMessages(answer.identity.decode(), reached, last, messages)
            if reached >= min(up_to, last) or reached <= after:
                return
            after = reached

    def put(self, messages: Sequence[DiscoveryMessage], timeout: float | None = None) -> list[AckRun]:
        """Store messages, in order; the outcome of each. Messages with an id may be put again.

        :raises Unavailable: no broker answers; some may be stored
        """
        found: list[AckRun] = []
        while len(found) < len(messages):
            part = _part(messages, len(found))
            wait = self.timeout if timeout is None else timeout
            try:
                with self._writing:
                    found += self.retried(partial(self._put, part), time.monotonic() + wait)
            except Unavailable as e:
                raise Unavailable(self.connection.explain("discovery", str(e))) from e
        return found

    def _put(self, messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
        connection = self.connection
        machine = connection.machine
        deadline = time.monotonic() + self.settings.connect_timeout
        with connection.changed:
            if machine.registered.stream != self._stream:
                raise Unavailable("the broker has not opened the stream yet")
            epoch = machine.reconnects
            machine.send_frames(
                [encode(StreamSend(m.subject.encode(), [m.content], write(m.extension))) for m in messages]
            )
            call = machine.ping(time.monotonic(), deadline)
        connection.wait(call, "discovery")
        if epoch != machine.reconnects:
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
        """The answers of :meth:`put`.

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

"""The contract of bridges: interfaces and value types that the code for each middleware implements. Pure.

A bridge moves bytes and reports what came back, in columns and synchronously. It never retries, keeps no messages that
it did not take, writes no flight events and does not know Spark; :mod:`mama_spark.publishing.window.window` decides
what is sent, and when again.

Calls come one at a time, in this order: ``open`` (after one that raised, ``close``, then ``open`` again), then
``prepare`` / ``send`` / ``flush`` / ``poll`` in any order and all on one thread, ``close`` once. ``open`` and ``close``
may come from other threads, before that one begins and after it has ended. ``close`` is safe after a failed ``open``
and may be repeated. A bridge is made in the process that uses it (in Spark: a Python worker of a task or of the
driver), and is never pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from .errors import PublishError
from .message import Bools, Int64s, MessageBatch


class Ack(Enum):
    """Meaning of an acknowledgement.

    :cvar NONE: there is none
    :cvar SENT: written to the connection of every reader; delivery is not confirmed
    :cvar ACCEPTED: the middleware has the message, but does not store it
    :cvar STORED: the message is in a durable log
    """

    NONE = "none"
    SENT = "sent"
    ACCEPTED = "accepted"
    STORED = "stored"


class EventStyle(Enum):
    """The callback style of OpenMAMA that reports asynchronous errors (exactly one a bridge)."""

    PUBLISHER = "publisher"
    TRANSPORT = "transport"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a bridge *as it is configured*. The conformance suite proves each of them.

    :ivar ack: meaning of its acknowledgements
    :ivar sequence: acks carry the sequence number of the log
    :ivar dedup: two messages of the same id are stored once; without it Spark's writes send no ids, and a resend may
        be stored twice
    :ivar headers: messages have headers
    :ivar ordered: the messages of one publisher are stored in order also when some are refused or resent; without it
        ``order=partition`` has one message in flight
    :ivar max_payload: most bytes of payload and headers together
    :ivar max_topic: most bytes of a topic
    :ivar events: callback style of OpenMAMA
    :ivar packs: several rows may travel in one payload; needs ``headers``
    """

    ack: Ack
    sequence: bool
    dedup: bool
    headers: bool
    ordered: bool
    max_payload: int
    max_topic: int
    events: EventStyle = EventStyle.PUBLISHER
    packs: bool = True


@dataclass(frozen=True, slots=True)
class Acks:
    """Acknowledgements that came together.

    :ivar tokens: tokens of the sends, in any order
    :ivar sequences: one a token, or None where the middleware does not give them
    :ivar duplicates: one a token, or None for "none of them"
    :ivar stream: stream that stores the messages; None if not given
    :ivar at: ``time.monotonic()`` of their arrival
    :ivar domain: domain of the stream; None if not given
    :ivar level: meaning of these; None = that of the capabilities. :attr:`Ack.NONE`: the messages have no subscribers,
        will not be acknowledged, and end as ``published``
    """

    tokens: Int64s
    sequences: Int64s | None
    duplicates: Bools | None
    stream: str | None
    at: float
    domain: str | None = None
    level: Ack | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """Negative acknowledgements, or sends that will not be acknowledged, with one cause.

    :ivar tokens: tokens of the sends, in any order
    :ivar error: the cause
    :ivar at: ``time.monotonic()`` of their arrival
    """

    tokens: Int64s
    error: PublishError
    at: float


class EventKind(Enum):
    """An event of the transport rather than of a message.

    :cvar DISCONNECTED: every send without an answer is in doubt from here on
    :cvar RECONNECTED: the bridge has restored the connection
    :cvar CLOSED: for good: nothing can be sent any more; ``error`` says why
    :cvar WARNING: passes by itself, or is only advice; is logged
    """

    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    CLOSED = "closed"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class BridgeEvent:
    """An event of the transport, which a publisher logs.

    :ivar kind: what happened
    :ivar info: text for people
    :ivar at: ``time.monotonic()`` of the event
    :ivar topic: topic that it concerns, if it is one
    :ivar error: cause of ``CLOSED``
    """

    kind: EventKind
    info: str
    at: float
    topic: str | None = None
    error: PublishError | None = None


@dataclass(frozen=True, slots=True)
class PollResult:
    """Answers and events since the last poll, each list in order of arrival.

    :ivar acks: acknowledgements
    :ivar refusals: negative acknowledgements
    :ivar events: events of the transport, such as a lost and restored connection
    """

    acks: list[Acks] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)
    events: list[BridgeEvent] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.acks or self.refusals or self.events)


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Faults of a batch that the bridge found before it sent any of it.

    :ivar rejected: rows that may not be sent, with the reason, ascending by row
    :ivar non_retriable: True where an expectation forbids to resend a message that may be stored; None = nowhere
    """

    rejected: list[tuple[int, PublishError]] = field(default_factory=list)
    non_retriable: Bools | None = None


@dataclass(frozen=True, slots=True)
class OnTheWay:
    """Sends that may still be stored later than now.

    :ivar rows: True for each of these, one element a send
    :ivar since: monotonic time at which the wait for them began
    :ivar why: text: where they may be, and which event ends the wait
    """

    rows: Bools
    since: float
    why: str


class PublisherBridge(ABC):
    """A connection on which one publisher sends."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Known after :meth:`open`."""

    @abstractmethod
    def open(self) -> None:
        """Connect and check everything that can be checked before the first publish.

        :raises ConfigError: the user must change something (stream, permission, credentials, option)
        :raises Unavailable: the middleware does not answer; a later try may succeed, after :meth:`close`
        """

    @abstractmethod
    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """Check topics, headers and sizes of whole columns at once; rows that the caller has rejected may hold any
        value, or null. Asks the middleware only about topics that are new to the bridge (is there a stream?), and
        caches the answer.

        :raises ConfigError: no stream takes any of the topics so far
        :raises Unavailable: the middleware does not answer
        """

    @abstractmethod
    def send(self, batch: MessageBatch, first_token: int) -> int:
        """Take ``batch[:n]`` for sending and return n; 0 when it can take nothing now (disconnected, full). Never
        blocks for acknowledgements. Never raises: an exception ends the publisher, or fails these messages as perhaps
        stored.

        Message i has the token ``first_token + i``. Tokens only ever rise and are never reused; those of messages that
        were not taken are given to the next ones. Each token taken is answered once, by Acks or Refusals, or never (the
        answer was lost). After the events DISCONNECTED and CLOSED the outcome of unanswered sends is unknown, and the
        bridge reports one later only if the middleware itself still answers.
        """

    @abstractmethod
    def flush(self) -> None:
        """Make the middleware acknowledge everything sent so far (ends an open batch): no more messages come for now.
        Does not wait. Idempotent; nothing to do where each message is acknowledged by itself."""

    @abstractmethod
    def poll(self, timeout: float, want: int = 1) -> PollResult:
        """Wait until ``want`` tokens are answered, or a refusal or event arrived, at most ``timeout`` seconds (0: not
        at all); everything that arrived, perhaps nothing.

        :raises BackgroundTaskFailed: a background task of the bridge ended with an error
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection; with :attr:`Ack.NONE`, after the sends are written. Never raises; unanswered sends
        stay unanswered."""

    # --- what some can do ---

    def explain_missing_acks(self) -> str:
        """Cause of missing acknowledgements or a missing connection, and the remedy, as a sentence; empty if unknown.
        On the thread of the other calls; takes a few seconds at most. Never raises."""
        return ""

    def on_the_way(self, tokens: Int64s, topics: pa.DictionaryArray) -> OnTheWay | None:
        """The sends among these that may still be stored; None: none that the bridge knows of. Never waits.

        :param topics: topic of each send
        """
        return None

    def abort_unsent(self, why: str) -> None:
        """Prevent that bytes that have not left this machine are stored; drops the connection if need be."""
        return

    def sent_to(self) -> tuple[str, ...]:
        """Servers that may still have messages of this bridge in their buffers, the present one last, as for
        :meth:`.BatchLedger.why_unfenced`. Empty: none is known. Any thread may ask; also after :meth:`close`."""
        return ()

    def duplicate_window(self) -> float | None:
        """The shortest time in seconds for which an id is known where messages went so far; None: not known. Asks
        nobody; also after :meth:`close`."""
        return None

    def requests(self) -> RequestBridge | None:
        """Requests and replies over this connection, which closes them with itself; None: it has none."""
        return None


# --- requests and replies ----------------------------------------------------------------------------------


class RequestMessage(NamedTuple):
    """A request that was received, or the reply to one that was sent.

    :ivar topic: topic of the request
    :ivar inbox: number of the request that this replies to; None: this is a request
    :ivar reply_to: address of replies to this; None: no reply is wanted
    :ivar error: instead of a reply: no subscriber takes the request, or no permission
    """

    topic: str
    payload: bytes
    inbox: int | None = None
    reply_to: str | None = None
    error: PublishError | None = None


class RequestBridge(Protocol):
    """Requests and replies, which no log stores. Calls come from the thread that calls the publisher bridge."""

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        """Send a request; replies carry ``inbox``, a number of the caller's, until :meth:`forget`.

        :raises PublishError: the topic cannot be sent to
        :raises ConfigError: no permission to receive replies
        :raises Unavailable: the connection is down
        """

    def forget(self, inbox: int) -> None:
        """Drop further replies to this request."""

    def reply(self, to: str, payload: bytes) -> None:
        """Reply to a request; errors as :meth:`request`."""

    def listen(self, topic: str) -> None:
        """Receive requests that are sent to ``topic``.

        :raises ConfigError: no permission
        :raises Unavailable: the connection is down
        """

    def unlisten(self, topic: str) -> None:
        """Undo :meth:`listen`."""

    def received(self) -> list[RequestMessage]:
        """Requests and replies since the last call, in order of arrival. Never waits."""


# --- discovery ---------------------------------------------------------------------------------------------


class SourceKey(NamedTuple):
    """Identity of a source on a transport. Names are not unique; an id (unsigned, 64 bits) belongs to one source."""

    name: str
    id: int | None


class DiscoveryEventKind(Enum):
    """Kind of a :class:`DiscoveryEvent`.

    :cvar RECORD: ``payload`` is the source message in which a source describes itself
    :cvar SUSPECT: the middleware says that ``source`` was not renewed for half its time to live
    :cvar OFFLINE: and for all of it
    :cvar EVENT: something happened to a publisher or a topic; ``payload`` is the event message
    :cvar SUBSCRIBED: any consumer of the middleware began to read ``topic``; ``info`` names it
    :cvar UNSUBSCRIBED: and ended
    :cvar IMAGE_END: end of the image; changes follow
    :cvar GAP: records ``gap[0]`` to ``gap[1]`` of ``origin`` were lost before they were read
    """

    RECORD = "record"
    SUSPECT = "suspect"
    OFFLINE = "offline"
    EVENT = "event"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    IMAGE_END = "image_end"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class DiscoveryEvent:
    """One element of the image of the sources, or one change. Payloads are opaque here; ``mama`` decodes them.

    :ivar at: microseconds since the epoch, by the clock of the middleware
    :ivar origin: name of the log that it is (or was, in an image) stored in
    :ivar sequence: number there; None for what is stored in no log
    """

    kind: DiscoveryEventKind
    at: int
    origin: str
    sequence: int | None = None
    source: SourceKey | None = None
    payload: bytes | None = None
    topic: str | None = None
    info: str | None = None
    gap: tuple[int, int] | None = None


#: Offset of a reader of discovery: JSON, opaque to everything but the bridge.
Position = dict[str, Any]


class DiscoveryBridge(Protocol):
    """Announces sources and finds them: an image of them, and a log of changes.

    Calls come one at a time, ``open`` first and ``close`` last; those of an announcer come from two threads, one after
    the other. There may be several readers and announcers at a time.
    Methods raise :class:`~mama_spark.contracts.errors.ConfigError` for what the user must change (a permission: names
    it) and :class:`~mama_spark.contracts.errors.Unavailable` when the middleware does not answer.
    """

    def open(self) -> None:
        """Connect. Creates nothing: that :meth:`announce`, :meth:`publish_events` and :meth:`create_streams` do."""

    def create_streams(self) -> None:
        """Create missing streams of discovery, for other announcers; nothing where the middleware keeps them itself."""

    # --- announcing ---

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Write the source's record (if another one is stored), and hold a lease on it from this process. Several
        processes may announce one source.

        The middleware itself turns a source that was not renewed for ``ttl / 2`` seconds SUSPECT, and OFFLINE after
        ``ttl``. This process renews every ``ttl / 3`` while it holds the lease. On NATS and Malamute a thread goes on
        for 50 s after :meth:`close`: the next micro-batch announces the same source with another bridge.
        """

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """End the source: ``record`` says OFFLINE. Renewals by others do not bring it back; a new :meth:`announce`
        does."""

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Append events of the source's publishers, in order; an event whose id is known is not stored again."""

    # --- reading ---

    def image(self) -> list[DiscoveryEvent]:
        """The sources, one or two events each (RECORD, then SUSPECT or OFFLINE), and IMAGE_END. Those that are OFFLINE
        stay in the image for as long as the middleware keeps their records, perhaps not at all."""

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """The first offset: at ``image`` (no I/O), ``earliest``, ``latest``, or pairs of log and first sequence. An
        offset is JSON, opaque to all but the bridge."""

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """The offset after the last record, at most ``limit`` records after ``start`` and not beyond ``until``;
        ``start`` itself when there is nothing new. From ``initial_offset("image")`` it first saves the image for this
        reader, so that what precedes the returned offset can be read again."""

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """The events between two offsets, in order; the same each time."""

    def close(self) -> None:
        """Close the bridge; never raises."""

"""What a bridge is: the code for one middleware, behind a small synchronous, columnar face.

A bridge never retries, never keeps messages that it did not take, never writes flight events and does not know
Spark. Deciding is the window's business (:mod:`mama_spark.sending.window`): a bridge moves bytes and says what
came back.

Calls come one at a time, in this order: ``open`` once, then ``prepare`` / ``send`` / ``flush`` / ``poll`` in any order
and all on one thread, ``close`` once. ``open`` and ``close`` may come from other threads, before that one begins and
after it has ended. ``close`` is safe after a failed ``open`` and may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from .errors import PublishError
from .message import Bools, Int64s, MessageBatch


class Ack(Enum):
    """What an acknowledgement of this middleware means."""

    NONE = "none"  #: there is none
    ACCEPTED = "accepted"  #: somebody took it
    STORED = "stored"  #: it is in a durable log


class EventStyle(Enum):
    """Which of OpenMAMA's two callback styles reports asynchronous errors (exactly one a bridge)."""

    PUBLISHER = "publisher"
    TRANSPORT = "transport"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the bridge can do *as it is configured*. Proven by the conformance suite, so never a wish."""

    ack: Ack
    sequence: bool  #: acks carry the sequence number of the log
    dedup: bool  #: two messages of the same id are stored once
    headers: bool
    ordered: bool  #: the messages of one publisher are stored in order also when some are refused or resent
    max_payload: int  #: bytes of payload and headers together
    max_topic: int  #: bytes
    events: EventStyle = EventStyle.PUBLISHER
    discovery: bool = False
    packs: bool = True  #: payloads are bytes, in which several rows may travel (with ``headers``)


@dataclass(frozen=True, slots=True)
class Acks:
    """Positive answers that came together.

    :ivar tokens: of the sends, in any order
    :ivar sequences: one a token, or None when this mode does not tell
    :ivar duplicates: one a token, or None for "none of them"
    :ivar stream: where they are stored, None if not told
    :ivar at: ``time.monotonic()`` of their arrival
    :ivar domain: that the stream belongs to, None if not told
    """

    tokens: Int64s
    sequences: Int64s | None
    duplicates: Bools | None
    stream: str | None
    at: float
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """Negative or missing answers with one cause. Settles these sends only; the window decides what follows."""

    tokens: Int64s
    error: PublishError
    at: float


class EventKind(Enum):
    """What happened to the transport rather than to a message."""

    DISCONNECTED = "disconnected"  #: every send without an answer is in doubt from here on
    RECONNECTED = "reconnected"
    CLOSED = "closed"  #: for good: nothing can be sent any more; ``error`` says why
    WARNING = "warning"  #: self-healing or advisory; goes to the log of the process


@dataclass(frozen=True, slots=True)
class BridgeEvent:
    kind: EventKind
    info: str
    at: float
    topic: str | None = None
    error: PublishError | None = None


@dataclass(frozen=True, slots=True)
class PollResult:
    """Everything that came in since the last poll, each list in order of arrival."""

    acks: list[Acks] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)
    events: list[BridgeEvent] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.acks or self.refusals or self.events)


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What the bridge says about a batch before any of it is sent.

    :ivar rejected: rows that may not be sent, with the reason, ascending by row
    :ivar non_retriable: True where a message that may be stored must not be sent again although it has an id, since it
        carries an expectation; None = nowhere
    """

    rejected: list[tuple[int, PublishError]] = field(default_factory=list)
    non_retriable: Bools | None = None


class PublisherBridge(Protocol):
    """One transport for one publisher."""

    @property
    def capabilities(self) -> Capabilities:
        """Known after :meth:`open`."""
        ...

    def open(self) -> None:
        """Connect and check everything that can be known before the first publish.

        :raises ConfigError: the user must change something (stream, permission, credentials, option)
        :raises Unavailable: nobody answers; a later try may succeed
        """
        ...

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """Check topics, headers and sizes, vectorised: costs nanoseconds a message.

        Asks the middleware only about topics of which it knows nothing yet (is there a stream?), once, and remembers.

        Elements of ``batch`` that the caller already knows to be bad may be anything.

        :raises ConfigError: nothing of what has been prepared so far has a place to go to
        :raises Unavailable: nobody answers
        """
        ...

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """Take ``batch[:n]`` for sending and return n, 0 when it can take nothing now (disconnected, full).

        Message i is known as token ``first_token + i`` from here on. Tokens only ever rise and are never reused;
        tokens of what was not taken are handed out again by the caller. Never blocks for acknowledgements.
        Each token taken is answered exactly once, by Acks or Refusals, or by nothing at all (lost); events
        DISCONNECTED and CLOSED leave the unanswered ones in doubt, and the bridge answers none of them later
        unless the middleware itself still does.
        """
        ...

    def flush(self) -> None:
        """No more messages for now: make the middleware answer for everything sent (ends an open batch).

        Does not wait. Idempotent, and harmless for bridges that answer message by message.
        """
        ...

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        """Wait until ``want`` tokens are answered, or a refusal or event is there, at most ``timeout`` seconds.

        Returns everything that is there, perhaps nothing. ``timeout=0`` does not wait.

        :raises BackgroundTaskFailed: the bridge's own loop ended with an error
        """
        ...

    def close(self) -> None:
        """Give the connection back. Never raises; what is unanswered stays unanswered."""
        ...


# --- rows with columns of a middleware's own ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as messages, row for row.

    :ivar topics: dictionary<int32, string> without nulls
    :ivar payloads: binary or large_binary without nulls; placeholders stand in for what is bad
    :ivar bad: rows that cannot become a message, with the reason, ascending, each row once
    """

    topics: pa.DictionaryArray
    payloads: pa.Array
    bad: list[tuple[int, PublishError]]


class RowCodec(Protocol):
    """Makes messages of rows, for middlewares whose values have types. Equal rows become equal messages, always."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns by their names, and what each must be, for people."""
        ...

    @property
    def needed(self) -> Sequence[str]:
        """Those that must be there."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """:raises SchemaError: a column has a type that cannot be encoded"""
        ...

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """:param rows: columns of :attr:`columns`, of a schema that was checked"""
        ...


# --- requests and replies ----------------------------------------------------------------------------------


class RequestMessage(NamedTuple):
    """A request that came in, or what came back for one that was sent.

    :ivar topic: that the request was sent to
    :ivar inbox: number of the request that this answers; None: this is a request
    :ivar reply_to: where an answer to this goes; None: nobody waits for one
    :ivar error: came back instead of an answer: nobody takes requests there, or no permission
    """

    topic: str
    payload: bytes
    inbox: int | None = None
    reply_to: str | None = None
    error: PublishError | None = None


class RequestBridge(Protocol):
    """Requests and their answers, outside of every log. Optional: a publisher bridge that has it gives it by a method
    ``requests()``, and closes it with itself. Calls come from the thread that calls the publisher bridge."""

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        """Send a request; what comes back carries ``inbox``, a number of the caller's, until :meth:`forget`.

        :raises PublishError: the topic is no place to send to
        :raises ConfigError: no permission to receive answers
        :raises Unavailable: the connection is down
        """
        ...

    def forget(self, inbox: int) -> None:
        """No more answers to this request are wanted."""
        ...

    def reply(self, to: str, payload: bytes) -> None:
        """Answer a request; errors as :meth:`request`."""
        ...

    def listen(self, topic: str) -> None:
        """Take requests that are sent to ``topic``.

        :raises ConfigError: no permission
        :raises Unavailable: the connection is down
        """
        ...

    def unlisten(self, topic: str) -> None: ...

    def received(self) -> list[RequestMessage]:
        """What came in since the last call, in order of arrival. Never waits."""
        ...


# --- discovery ---------------------------------------------------------------------------------------------


class SourceKey(NamedTuple):
    """What tells one source from another on a transport. Names are not unique; an id is one source's (u64)."""

    name: str
    id: int | None


class DiscoveryEventKind(Enum):
    """What one element of the image, or one change, is."""

    RECORD = "record"  #: what a source says of itself; ``payload`` is its source message
    SUSPECT = "suspect"  #: a source was not heard of for some time, said by the middleware; ``source`` tells which
    OFFLINE = "offline"  #: and for longer
    EVENT = "event"  #: something happened to a publisher or a topic; ``payload`` is the event message
    SUBSCRIBED = "subscribed"  #: a reader that need not know of us came, for ``topic``; ``info`` tells which
    UNSUBSCRIBED = "unsubscribed"
    IMAGE_END = "image_end"  #: all sources that there were have been told; what follows are changes
    GAP = "gap"  #: records ``gap[0]`` to ``gap[1]`` of ``origin`` were lost before they were read


@dataclass(frozen=True, slots=True)
class DiscoveryEvent:
    """One thing that discovery tells. Bytes are not looked into here: that is the business of ``mama``.

    :ivar at: microseconds since the epoch, by the clock of the middleware
    :ivar origin: the log it stands in (or stood, in an image)
    :ivar sequence: its number there; None for what stands in no log
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


#: Where a reader of discovery stands: JSON, made and understood by the bridge alone.
Position = dict[str, Any]


class DiscoveryBridge(Protocol):
    """Where sources announce themselves and are found: the image of those there are, and a log of what changes.

    Calls come from one thread: ``open``, anything, ``close``; several readers and announcers may live at a time.
    Methods raise :class:`~mama_spark.errors.ConfigError` for what the user must change (a permission: names it) and
    :class:`~mama_spark.errors.Unavailable` when nobody answers.
    """

    def open(self) -> None:
        """Connect, and make the places of discovery where they are missing."""
        ...

    # --- who announces ---

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        """Write what the source says of itself (if it is not what stands there), and keep it alive from this process.

        The middleware itself turns a source that was not renewed for ``ttl / 2`` seconds SUSPECT, and OFFLINE after
        ``ttl``. This process renews every ``ttl / 3`` while a lease is held or warm (:meth:`close` gives it back;
        another :meth:`announce` of the same source takes it up again). Several processes may announce one source.
        """
        ...

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        """The source ends in order: ``record`` says so (OFFLINE); nobody's renewals bring it back but a new
        :meth:`announce`."""
        ...

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Append events of the source's publishers, in order; an id that is there already is not stored again."""
        ...

    # --- who reads ---

    def image(self) -> list[DiscoveryEvent]:
        """The sources there are now, one or two changes each (RECORD, then what the middleware says of it), and
        IMAGE_END."""
        ...

    def initial_offset(self, where: str | tuple[tuple[str, int], ...]) -> Position:
        """``image``, ``earliest``, ``latest``, or pairs of log and first sequence. Without I/O for ``image``."""
        ...

    def latest_offset(self, start: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """The position after what there is now, at most ``limit`` records on, and not beyond ``until``; ``start``
        itself when there is nothing.

        From ``begin("image")`` it first writes the image down for this reader, so that what lies before the position
        it returns can be read again.
        """
        ...

    def read(self, start: Position, end: Position) -> Iterator[list[DiscoveryEvent]]:
        """What lies between two positions, in order; the same each time."""
        ...

    def close(self) -> None:
        """Never raises."""
        ...


if not TYPE_CHECKING:  # old names, for one release

    def __getattr__(name: str) -> object:
        from .moved_names import successor

        return successor(__name__, name)

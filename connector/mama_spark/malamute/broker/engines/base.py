"""The interface of stream engines: an engine stores and routes one stream (the API of the Malamute specification).
Pure.

An engine is a class with a name. The broker makes one instance per stream and runs it in a thread of its own, or in
threads that several streams share (:mod:`.engine_threads`). Its methods are called one after another in both cases and
need no locks. It gets these commands:

| command | method | meaning |
|---|---|---|
| VERBOSE | :meth:`~StreamEngine.verbose` | log the name of each command (ML-11) |
| TRAFFIC endpoint | :meth:`~StreamEngine.traffic` | endpoint of deliveries; the thread connects. Idempotent (ML-18) |
| (WRITE of a client) | :meth:`~StreamEngine.open_for_writing` | a client will publish |
| COMPILE client, pattern | :meth:`~StreamEngine.compile` | subscribe. Idempotent (ML-12) |
| CANCEL client | :meth:`~StreamEngine.cancel` | end all subscriptions of the client. Idempotent (ML-14) |
| ACCEPT client, address, subject, content | :meth:`~StreamEngine.accept` | publish (ML-15) |
| BLOCK client, address, block | :meth:`~StreamEngine.accept_block` | publish its messages |
| CREDIT client, amount | :meth:`~StreamEngine.credit` | the client accepts this many more messages (ML-07) |
| SYNC client | :meth:`~StreamEngine.sync` | outcomes of the client's messages since the last SYNC |
| ASK client, query | :meth:`~StreamEngine.ask` | query the store (:mod:`mama_spark.malamute.protocol.log_query`) |
| (no command waits) | :meth:`~StreamEngine.idle` | background work, in small pieces |
| (a batch was executed) | :meth:`~StreamEngine.may_end` | whether the stream can be given back when nobody uses it |
| $TERM | :meth:`~StreamEngine.close` | free everything (ML-10) |

and delivers by :meth:`~StreamEngine.deliver`. ``client`` is an opaque reference: an engine compares and hashes it, and
forgets it on CANCEL. The sender of a message never gets it itself, and a client gets one copy however many of its
patterns match (ML-15, ML-25). ACCEPT and the delivery have the specification's four columns; positions, ids and headers
are additional parameters.

:mod:`.registry` finds engines by name. :class:`mama_spark.malamute.testing.engine_suite.EngineSuite` tests whether an
engine keeps these rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Extension
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer
from mama_spark.malamute.protocol.message_blocks import MessageBlock


class Delivery(NamedTuple):
    """One message for one client (ML-19), by its reference, from the ``sender`` with this address."""

    client: Hashable
    sender: bytes
    subject: bytes
    content: Sequence[bytes]
    extension: Extension | None = None


class StreamEngine(ABC):
    """One stream. An error of any method but :class:`~mama_spark.malamute.protocol.patterns.BadPattern` ends it: its
    clients get ERROR 502. The engine checks its ``settings`` of the broker's configuration."""

    #: The engine numbers its messages, stores an id once, and what it acknowledges as stored survives the broker.
    stored: ClassVar[bool] = False
    #: Declares the keys of ``settings``, with :func:`mama_spark.options.declare.option`.
    settings_class: ClassVar[type | None] = None
    #: Most threads for all streams of this engine; 0 = a thread each. A class does not inherit it
    #: (:func:`shared_threads`), because the engines of other streams wait while a method blocks or computes.
    shared_threads: ClassVar[int] = 0

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.settings = dict(settings or {})
        self.logging = False
        self._deliver: Callable[[Delivery], object] = _discard

    def start(self) -> None:  # noqa: B027 an engine without storage has nothing to open
        """Called first, in the engine's thread; the stream exists when this returns."""

    def close(self) -> None:  # noqa: B027
        """Called last ($TERM)."""

    def verbose(self) -> None:
        self.logging = True

    def traffic(self, deliver: Callable[[Delivery], object]) -> None:
        """Set the receiver of deliveries; earlier ones are lost. Later calls have no effect."""
        if self._deliver is _discard:
            self._deliver = deliver

    def deliver(self, delivery: Delivery) -> None:
        self._deliver(delivery)

    def open_for_writing(self) -> None:  # noqa: B027
        """Called when a client announces that it will publish, before that is answered; may be called again."""

    @abstractmethod
    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        """Subscribe the client; nothing happens if it has this pattern already.

        :param after: replay messages with a higher sequence first, if the engine stores; None = only new messages
        :raises BadPattern: the engine refuses the pattern; nothing has changed
        """

    @abstractmethod
    def cancel(self, client: Hashable) -> None:
        """End all subscriptions of the client and forget it; a client without any is no error."""

    @abstractmethod
    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        """Publish a message of the client with this address to all subscribed clients but itself.

        :param extension: id and headers; None from a client that will not send SYNC
        """

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        """Publish the messages of a block, like calls of :meth:`accept`; an engine may do that faster."""
        for message in block.messages():
            self.accept(client, address, *message)

    def credit(self, client: Hashable, amount: int | None) -> None:  # noqa: B027
        """Allow ``amount`` more deliveries to the client; None = no limit, as before the first credit.

        An engine that stores overrides this: messages beyond the credit stay in the store and are replayed later (see
        :func:`holds`). The broker lends it parts of the client's credit and takes unused credit back: then ``amount``
        is negative, and at most the unused credit. Without storage the broker queues the messages for the client.
        """

    def position(self) -> int | None:
        """The sequence after which a subscription without ``after`` begins; None = no sequences. Called immediately
        after :meth:`compile`. A client that reconnects reads from there if it has received no message yet."""
        return None

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...] | None]:
        """Outcomes of the client's messages since the last SYNC; empty = all were accepted, without sequences.

        An engine that knows them only when the batch is stored returns a function, which is called after :meth:`flush`.
        While it returns None (not known yet), it is called again after each :meth:`flush` and :meth:`idle`, and later
        reports of the engine wait for the answer.
        """
        return ()

    def ask(self, query: LogQuery) -> tuple[LogQueryAnswer, list[list[bytes]]]:
        """The answer to a query about the stored stream, and the frames of the STREAM DELIVERs that go before it.
        Called after :meth:`flush`; must not take long."""
        reason = self.unreadable(self.name, self.settings) or "this engine answers no queries"
        return LogQueryAnswer(query.number, StatusCode.NOT_IMPLEMENTED, reason.encode()), []

    @classmethod
    def unreadable(cls, name: bytes, settings: Mapping[str, Any]) -> str | None:
        """Why this engine answers no queries about the stream, and how to read it instead; None = it answers them."""
        return "this engine keeps nothing to read again" if cls.ask is StreamEngine.ask else None

    @classmethod
    def unopened(cls, name: bytes, settings: Mapping[str, Any]) -> str | None:
        """Why nobody can say whether a stream that is not open is stored; None = :meth:`is_stored` says it."""
        return None

    @classmethod
    def stored_streams(cls, settings: Mapping[str, Any]) -> list[bytes]:
        """Names of the streams that are stored with these settings, whether open or not."""
        return []

    @classmethod
    def is_stored(cls, name: bytes, settings: Mapping[str, Any]) -> bool:
        return False

    def flush(self) -> None:  # noqa: B027
        """End a batch of commands: store the accepted messages. Deliveries and answers of the batch are sent when this
        has returned, and dropped if it raises. An engine may deliver the batch here, after the answers to SYNC."""

    def may_end(self) -> bool:
        """Whether nothing is lost when the engine ends now and is started again at the next command. Asked after each
        batch; the broker ends such an engine when no client has used its stream for a while."""
        return False

    def idle(self) -> float | None:
        """Do a small piece of background work, e.g. replay, while no command waits; returns seconds until the next,
        None = after the next batch. The call is delayed while too many reports wait: replay is not faster than the
        server."""
        return None


def _discard(delivery: Delivery) -> None:
    """Drops deliveries before TRAFFIC."""


def shared_threads(engine: type[StreamEngine]) -> int:
    """0 = each has a thread of its own."""
    return int(engine.__dict__.get("shared_threads", 0))


def holds(engine: type[StreamEngine]) -> bool:
    """Whether the engine counts credit and delivers only against it."""
    return engine.credit is not StreamEngine.credit

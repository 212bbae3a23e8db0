"""Stream engines: what stores and routes one stream, behind the API of the Malamute stream specification.

An engine is a class with a name. The broker makes one instance per stream and runs it in a thread of its own
(:mod:`.actor`), so its methods are called one after another and need no locks. It gets these commands:

| command | method | meaning |
|---|---|---|
| VERBOSE | :meth:`~StreamEngine.verbose` | log the name of each command (ML-11) |
| TRAFFIC endpoint | :meth:`~StreamEngine.traffic` | where deliveries go; the actor connects. Idempotent (ML-18) |
| COMPILE client, pattern | :meth:`~StreamEngine.compile` | subscribe. Idempotent (ML-12) |
| CANCEL client | :meth:`~StreamEngine.cancel` | end all subscriptions of the client. Idempotent (ML-14) |
| ACCEPT client, address, subject, content | :meth:`~StreamEngine.accept` | publish (ML-15) |
| BLOCK client, address, block | :meth:`~StreamEngine.accept_block` | its messages
(:mod:`mama_spark.malamute.protocol.message_blocks`) |
| CREDIT client, amount | :meth:`~StreamEngine.credit` | the client takes this many messages more (ML-07) |
| SYNC client | :meth:`~StreamEngine.sync` | what became of the client's messages since the last SYNC |
| ASK client, question | :meth:`~StreamEngine.ask` | what is stored (:mod:`mama_spark.malamute.protocol.log_query`) |
| (no command waits) | :meth:`~StreamEngine.idle` | work of its own, in small pieces |
| $TERM | :meth:`~StreamEngine.close` | free everything (ML-10) |

and delivers by :meth:`~StreamEngine.deliver`. ``client`` is an opaque reference: an engine compares and hashes it, and
forgets it on CANCEL. The sender of a message never gets it itself, and a client gets one copy however many of its
patterns match (ML-15, ML-25).

The first four columns of ACCEPT and the delivery are those of the specification; positions, ids and headers, which it
does not know, travel beside them.

:mod:`.registry` finds engines by name. :class:`mama_spark.testing.engine_suite.EngineSuite` tests whether an engine
keeps these rules.
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
    """One message for one client (ML-19).

    :ivar client: reference of the client that gets it
    :ivar sender: address of the client that sent it
    :ivar extension: sequence, time, id and headers, where the engine has them
    """

    client: Hashable
    sender: bytes
    subject: bytes
    content: Sequence[bytes]
    extension: Extension | None = None


class StreamEngine(ABC):
    """One stream.

    :param name: of the stream
    :param settings: what the broker's configuration says for this engine; the engine checks it

    Whatever a method raises but :class:`~mama_spark.malamute.protocol.patterns.BadPattern` ends the stream: its clients
    are told so (ERROR 502).
    """

    #: It numbers its messages, an id is stored once, and what it acknowledges as stored survives the broker.
    stored: ClassVar[bool] = False

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.settings = dict(settings or {})
        self.logging = False
        self._deliver: Callable[[Delivery], object] = _nowhere

    def start(self) -> None:  # noqa: B027 an engine without storage has nothing to open
        """Called first, in the engine's thread; the stream exists when this returns."""

    def close(self) -> None:  # noqa: B027
        """Called last ($TERM)."""

    def verbose(self) -> None:
        self.logging = True

    def traffic(self, deliver: Callable[[Delivery], object]) -> None:
        """Deliveries go there from now on; before, they are lost. Later calls change nothing."""
        if self._deliver is _nowhere:
            self._deliver = deliver

    def deliver(self, delivery: Delivery) -> None:
        self._deliver(delivery)

    @abstractmethod
    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        """Subscribe the client; nothing happens if it has this pattern already.

        :param after: replay what has a higher sequence first, where the engine stores; None = what comes from now on
        :raises BadPattern: the engine does not take it, and nothing has changed
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

        :param extension: id and headers; None from a client that will not ask by SYNC
        """

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        """Publish messages that came together. An engine may do that faster than one by one, and not otherwise."""
        for message in block.messages():
            self.accept(client, address, *message)

    def credit(self, client: Hashable, amount: int | None) -> None:  # noqa: B027
        """The client takes ``amount`` messages more; None = any number, as it is before the first credit.

        An engine that stores overrides this: it holds what is beyond and replays it (see :func:`holds`). The broker
        lends it parts of the client's credit, and takes back what it does not use: ``amount`` is then negative, and
        never more than what is left. Without storage, the broker's queue for the client is what holds.
        """

    def position(self) -> int | None:
        """Right after :meth:`compile` without ``after``: what has a higher sequence is for who subscribed; None = the
        engine does not number.

        Clients that lost their connection read on from there, though nothing has come yet.
        """
        return None

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...] | None]:
        """What became of the client's messages since the last SYNC; nothing = all were accepted, none is numbered.

        An engine that knows it only when the batch is safe returns a function, which is called after :meth:`flush`. If
        that returns None, nobody knows yet: it is called again after each :meth:`flush` and :meth:`idle`, and what the
        engine says behind it waits for the answer.
        """
        return ()

    def ask(self, question: LogQuery) -> tuple[LogQueryAnswer, list[list[bytes]]]:
        """Of somebody who reads what is stored. Called after :meth:`flush`; must not take long, whatever is asked.

        :return: the answer, and the frames of the STREAM DELIVERs that go before it
        """
        reason = self.unreadable(self.name, self.settings) or "this engine answers nothing"
        return LogQueryAnswer(question.number, StatusCode.NOT_IMPLEMENTED, reason.encode()), []

    @classmethod
    def unreadable(cls, name: bytes, settings: Mapping[str, Any]) -> str | None:
        """Why nobody can ask this engine for what this stream keeps, and where to read it; None = it answers."""
        return "this engine keeps nothing to read again" if cls.ask is StreamEngine.ask else None

    @classmethod
    def shelf(cls, settings: Mapping[str, Any]) -> list[bytes]:
        """Names of the streams that are stored with these settings, whether open or not."""
        return []

    @classmethod
    def keeps(cls, name: bytes, settings: Mapping[str, Any]) -> bool:
        """Whether this stream is stored with these settings."""
        return False

    def flush(self) -> None:  # noqa: B027
        """The end of a batch of commands: what was accepted should now be safe.

        Nothing that the engine said during the batch (deliveries, answers to SYNC) leaves before this returns; if it
        raises, none of it does. An engine may deliver the messages of the batch here, behind the answers to SYNC.
        """

    def idle(self) -> float | None:
        """No command waits: do a small piece of what is to be done without one (replay, for example).

        :return: seconds after which to call again; None = not before the next batch of commands. It is called later
            than that while the server has not taken what the engine said before, so that replay waits for the server
        """
        return None


def _nowhere(delivery: Delivery) -> None:
    """Deliveries before TRAFFIC."""


def holds(engine: type[StreamEngine]) -> bool:
    """The engine counts credit, and delivers nothing beyond it."""
    return engine.credit is not StreamEngine.credit

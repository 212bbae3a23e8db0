"""The Malamute client: streams, mailboxes and services of a broker, from any thread.

It works with the C broker and with ours. Features that only our broker has (credit, sequences, ids, headers,
acknowledgements, confirmations) raise :class:`~mama_spark.contracts.errors.ConfigError` with the C broker. Every call
has a deadline. After a lost connection the client reconnects and restores its streams, subscriptions and offers;
messages that were not acknowledged may be lost then: :meth:`MalamuteClient.sync` reports that.

::

    with MalamuteClient("mlp://127.0.0.1:9999", "reader") as client:
        client.read("weather", "^temp")
        message = client.receive(timeout=10)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.headers import TOO_MANY_HEADERS

from ..protocol import commands
from ..protocol.commands import Command, StatusCode
from ..protocol.extensions import AckRun, Extension, Feature, read, write
from .blocking_calls import BlockingCalls, ClientInbox, Tracker
from .calls import CallFailed, NoStream
from .connection import ClientConnection
from .connection_settings import FEATURES, ConnectionSettings

Text = str | bytes
logger = logging.getLogger("mama_spark")


@dataclass(frozen=True, slots=True)
class Message:
    """A delivered message.

    :ivar kind: ``stream``, ``mailbox`` or ``service``
    :ivar address: the stream, the mailbox or the service
    :ivar sender: address of the client that sent it, empty for an anonymous one
    :ivar content: frames
    :ivar tracker: id of a mailbox or service message whose sender waits for a confirmation
    :ivar sequence: number in a stored stream; ``time``: of storage, µs since the epoch
    :ivar headers: (name, value); names may repeat
    """

    kind: str
    address: str
    sender: str
    subject: str
    content: tuple[bytes, ...]
    tracker: str = ""
    sequence: int | None = None
    time: int | None = None
    id: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def message_of(command: Command) -> Message:
    if isinstance(command, commands.StreamDeliver):
        message = Message(
            "stream",
            text_of(command.address),
            text_of(command.sender),
            text_of(command.subject),
            tuple(command.content),
        )
        if not command.trailing:
            return message
        x = read(command.trailing)
        if x.too_many:
            logger.warning("a message of stream %r: %s", message.address, TOO_MANY_HEADERS)
        headers = tuple((text_of(name), text_of(value)) for name, value in x.headers)
        return replace(message, sequence=x.sequence, time=x.time, id=text_of(x.message_id), headers=headers)
    assert isinstance(command, commands.MailboxDeliver | commands.ServiceDeliver)
    kind = "mailbox" if isinstance(command, commands.MailboxDeliver) else "service"
    return Message(
        kind, text_of(command.address), text_of(command.sender), text_of(command.subject), tuple(command.content),
        text_of(command.tracker),
    )  # fmt: skip


def bytes_of(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def text_of(raw_bytes: bytes) -> str:
    return raw_bytes.decode("utf-8", "surrogateescape")


def quoted(text: Text) -> str:
    return repr(text if isinstance(text, str) else text_of(text))


def frames_of(content: bytes | Sequence[bytes]) -> tuple[bytes, ...]:
    return (content,) if isinstance(content, bytes) else tuple(content)


__all__ = ["CallFailed", "MalamuteClient", "Message", "NoStream", "Tracker"]


class MalamuteClient:
    """A client of a broker. Thread-safe; open it with :meth:`open`, or by ``with``.

    :param url: URL of the broker, ``mlp://host:port``; several, separated by commas, are tried in turn
    :param address: address of the client's mailbox, and the sender that receivers see; empty = anonymous
    :param timeout: default timeout of calls, seconds
    :param window: messages that may wait for :meth:`receive`; the broker keeps the others. 0 = the application calls
        :meth:`give_credit`, None = no limit, as the C client
    :param confirm: :meth:`receive` confirms messages whose sender asks for it; else the application calls
        :meth:`confirm`
    :param options: fields of :class:`~mama_spark.malamute.client.connection_settings.ConnectionSettings`, like ``user``
    """

    def __init__(
        self,
        url: str = "mlp://127.0.0.1:9999",
        address: str = "",
        *,
        timeout: float = 5.0,
        window: int | None = 1000,
        confirm: bool = True,
        **options: Any,
    ) -> None:
        features = options.pop("features", FEATURES)
        if window is None and features is not None:
            features &= ~Feature.CREDIT
        urls = tuple(part.strip() for part in url.split(",") if part.strip())
        self._connection = ClientConnection(ConnectionSettings(urls, address, features=features, **options))
        self._window = (window or 0) if Feature.CREDIT in (features or Feature(0)) else 0
        self._inbox = ClientInbox(self._window)
        self._calls = BlockingCalls(self._connection, self._inbox, timeout)
        self._confirm = confirm
        self._unsynced: int | None = None  # reconnects before the first send that no sync covers
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        return self._connection.connected

    @property
    def features(self) -> Feature:
        """Features of the broker for this client; none for a C broker."""
        return self._connection.machine.features

    @property
    def reconnects(self) -> int:
        return self._connection.machine.reconnects

    # --- connection ----------------------------------------------------------------------------------------------

    def open(self, timeout: float | None = None) -> Self:
        """Connect.

        :raises Unavailable: no broker answers
        :raises ConfigError: the broker refuses the login or key
        :raises CallFailed: the broker refuses this client
        """
        if self._window:
            self._connection.machine.give_credit(self._window)
        self._connection.open(self._calls.seconds(timeout))
        return self

    def close(self, timeout: float | None = None) -> None:
        """Send CLOSE after all messages, and wait for the answer. Idempotent, never raises."""
        self._connection.close(self._calls.seconds(timeout))

    # --- streams -------------------------------------------------------------------------------------------------

    def write(self, stream: Text, timeout: float | None = None) -> None:
        """Choose the stream for :meth:`send`; the broker creates it if it does not exist.

        :raises CallFailed: the broker refuses; the text says why
        :raises Unavailable: no answer in time
        """
        self._calls.call(f"writing to {quoted(stream)}", timeout, commands.StreamWrite(bytes_of(stream)))

    def read(self, stream: Text, pattern: Text = b"", after: int | None = None, timeout: float | None = None) -> None:
        """Subscribe: :meth:`receive` returns messages whose subject matches. A stream may have several patterns.

        :param pattern: a regular expression (:mod:`mama_spark.malamute.protocol.patterns`) searched in the subject;
            empty = all
        :param after: replay stored messages with a higher sequence first (0 = all); None = only new messages
        :raises CallFailed: the broker refuses the pattern
        :raises ConfigError: ``after`` with a broker that stores nothing
        """
        if after is not None:
            self._require(Feature.SEQUENCE, "keeps no messages that could be read again")
        what = f"reading {quoted(stream)} with {quoted(pattern)}"
        trailing = write(Extension(after=after))
        self._calls.call(what, timeout, commands.StreamRead(bytes_of(stream), bytes_of(pattern), trailing))

    def cancel(self, stream: Text, timeout: float | None = None) -> None:
        """End all subscriptions of the stream."""
        self._calls.call(f"cancelling {quoted(stream)}", timeout, commands.StreamCancel(bytes_of(stream)))

    def send(
        self,
        subject: Text,
        content: bytes | Sequence[bytes] = (),
        *,
        id: Text = b"",
        headers: Mapping[str, Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send to the stream of :meth:`write`. The broker does not answer: :meth:`sync` reports the outcome.

        :param content: one frame or several
        :param id: a durable stream stores an id once
        :raises NoStream: :meth:`write` was not called
        :raises Unavailable: not connected, or no send window, for ``timeout`` seconds
        :raises ConfigError: id or headers with a broker that is not ours
        """
        pairs = tuple((k.encode(), v.encode()) for k, values in (headers or {}).items() for v in values)
        if id or pairs:
            self._require(Feature.HEADERS, "carries neither ids nor headers")
        frames = frames_of(content)
        trailing = write(Extension(message_id=bytes_of(id), headers=pairs)) if id or pairs else b""
        message = commands.encode(commands.StreamSend(bytes_of(subject), frames, trailing))

        def send_now() -> None:
            self._connection.machine.send_frames([message])
            if self._unsynced is None:
                self._unsynced = self.reconnects

        self._calls.send(timeout, frames, send_now, stream=True)

    def sync(self, timeout: float | None = None) -> tuple[AckRun, ...]:
        """Wait until the broker has received all messages sent.

        :returns: outcomes of the messages since the last call, in order; grouped by stream, in the order of their first
            messages. Empty with a C broker
        :raises Unavailable: the connection was lost: the outcomes are unknown
        """
        with self._connection.changed:
            since, self._unsynced = self._unsynced, None
        call = self._calls.call("waiting for the broker", timeout, commands.Ping())
        if since is not None and since != self.reconnects:
            raise Unavailable(
                self._connection.explain("waiting for the broker", "the connection was lost behind messages")
            )
        return call.extension.acks

    # --- mailboxes and services ----------------------------------------------------------------------------------

    def mailbox(
        self,
        address: Text,
        subject: Text,
        content: bytes | Sequence[bytes] = (),
        *,
        expires: float = 0.0,
        tracked: bool = False,
        timeout: float | None = None,
    ) -> Tracker | None:
        """Send to the client with this address, now or when it connects.

        :param expires: seconds after which the broker drops the undelivered message; 0 = never
        :param tracked: return a :class:`Tracker`
        """
        return self._send_message(commands.MailboxSend, address, subject, content, expires, tracked, timeout)

    def request(
        self,
        service: Text,
        subject: Text,
        content: bytes | Sequence[bytes] = (),
        *,
        expires: float = 0.0,
        tracked: bool = False,
        timeout: float | None = None,
    ) -> Tracker | None:
        """Send to one of the clients that offer the service, now or when there is one; see :meth:`mailbox`."""
        return self._send_message(commands.ServiceSend, service, subject, content, expires, tracked, timeout)

    def offer(self, service: Text, pattern: Text = b"", timeout: float | None = None) -> None:
        """Receive requests to the service whose subject matches the pattern.

        :raises CallFailed: the broker refuses the pattern
        """
        command = commands.ServiceOffer(bytes_of(service), bytes_of(pattern))
        self._calls.call(f"offering {quoted(service)}", timeout, command)

    def confirm(self, message: Message, code: int = StatusCode.SUCCESS, reason: str = "") -> None:
        """Confirm a message with a tracker to its sender: :attr:`StatusCode.SUCCESS`, or a failure."""
        with self._connection.changed:
            self._connection.machine.confirm(bytes_of(message.tracker), code, reason.encode())
        self._connection.wake()

    # --- receiving -----------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message:
        """The next message of any kind.

        :raises Unavailable: no message in time; the text says whether the client is connected
        :raises ClientClosed: the client was closed
        """
        self._calls.wait_until(lambda: len(self._inbox) > 0, timeout, "waiting for a message")
        with self._connection.changed:
            command, credit = self._inbox.take()
        if credit:
            self.give_credit(credit)
        message = message_of(command)
        if self._confirm and message.tracker and Feature.CONFIRM in self.features:
            self.confirm(message)
        return message

    def give_credit(self, messages: int) -> None:
        """Allow the broker to deliver ``messages`` more, of all kinds together; for ``window=0``."""
        with self._connection.changed:
            self._connection.machine.give_credit(messages)
        self._connection.wake()

    # --- machine and connection ----------------------------------------------------------------------------------

    def _require(self, feature: Feature, what: str) -> None:
        if feature not in self.features:
            raise ConfigError(f"{self._connection.endpoint}: this broker {what}")

    def _send_message(
        self,
        cls: type[commands.MailboxSend] | type[commands.ServiceSend],
        address: Text,
        subject: Text,
        content: bytes | Sequence[bytes],
        expires: float,
        tracked: bool,
        timeout: float | None,
    ) -> Tracker | None:
        tracker = None
        if tracked:
            self._require(Feature.CONFIRM, "confirms no messages")
            tracker = Tracker(self._calls, f"{id(self):x}-{next(self._numbers)}")
            self._inbox.trackers[tracker.name.encode()] = tracker
        name = tracker.name.encode() if tracker else b""
        message = cls(bytes_of(address), bytes_of(subject), name, int(expires * 1000), frames_of(content))
        try:
            self._calls.send(timeout, message.content, lambda: self._connection.machine.send_message(message))
        except MamaError:
            self._inbox.trackers.pop(name, None)
            raise
        return tracker

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

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from mama_spark.contracts.errors import ClientClosed, ConfigError, MamaError, Unavailable

from ..protocol import commands
from ..protocol.commands import Command, StatusCode
from ..protocol.extensions import AckRun, Extension, Feature, write
from .calls import Call, CallFailed, NoStream
from .connection import ClientConnection
from .connection_settings import FEATURES, ConnectionSettings
from .messages import Message, Text, frames_of, message_of, octets_of, quoted, text_of
from .state_machine import ClientMachine
from .states import ClientState

__all__ = ["CallFailed", "MalamuteClient", "Message", "NoStream", "Tracker"]

_ENDED = (ClientState.START, ClientState.CLOSED, ClientState.FAILED)


class Tracker:
    """Follows one mailbox or service message until its receiver confirms it."""

    def __init__(self, client: MalamuteClient, name: str) -> None:
        self.name = name
        self._client = client
        self._confirmation: commands.Confirm | None = None

    def __repr__(self) -> str:
        found = self._confirmation
        state = "unconfirmed" if found is None else f"{found.code} {text_of(found.reason)}".strip()
        return f"<Tracker {self.name} {state}>"

    @property
    def done(self) -> bool:
        return self._confirmation is not None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the receiver has confirmed the message.

        :raises CallFailed: the message did not arrive, or the receiver reports a failure; the text says why
        :raises Unavailable: no confirmation within ``timeout`` seconds
        """
        self._client._await(lambda: self.done, timeout, f"the confirmation of {self.name}")
        assert self._confirmation is not None
        if self._confirmation.code >= StatusCode.FAILED:
            raise CallFailed(f"message {self.name}", self._confirmation.code, self._confirmation.reason)


class MalamuteClient:
    """A client of a broker. Thread-safe; open it with :meth:`open`, or by ``with``.

    :param url: of the broker, ``mlp://host:port``; several, separated by commas, are tried in turn
    :param address: of the client's mailbox, and the sender that receivers see; empty = anonymous
    :param timeout: default timeout of calls, seconds
    :param window: messages that may wait for :meth:`receive`; the broker keeps the others. 0 = the application calls
        :meth:`give_credit`, None = no limit, as the C client
    :param confirm: :meth:`receive` confirms mailbox and service messages whose sender asks for it; otherwise the
        application calls :meth:`confirm`
    :param options: of :class:`~mama_spark.malamute.client.connection_settings.ConnectionSettings`: ``user``, ...
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
        self.timeout = timeout
        self._connection = ClientConnection(ConnectionSettings(urls, address, features=features, **options))
        self._window, self._confirm = window, confirm
        self._consumed = 0
        self._unsynced: int | None = None  # reconnects before the first send that no sync covers
        self._gives_credit = bool(window) and Feature.CREDIT in (features or Feature(0))
        self._inbox: deque[Command] = deque()
        self._trackers: WeakValueDictionary[bytes, Tracker] = WeakValueDictionary()  # weak: some are never confirmed
        self._numbers = count(1)

    def __repr__(self) -> str:
        state = f"{self._connection.endpoint} {self._connection.machine.state.value}"
        return f"<MalamuteClient {state}, {len(self._inbox)} received>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        if self._window and self._gives_credit:
            self._connection.machine.give_credit(self._window)
        self._connection.open(self._seconds(timeout))
        return self

    def close(self, timeout: float | None = None) -> None:
        """Send CLOSE after all messages, and wait for the answer. Idempotent, never raises."""
        self._connection.close(self._seconds(timeout))

    # --- streams -------------------------------------------------------------------------------------------------

    def write(self, stream: Text, timeout: float | None = None) -> None:
        """Choose the stream for :meth:`send`; the broker creates it if it does not exist.

        :raises CallFailed: the broker refuses; the text says why
        :raises Unavailable: no answer in time
        """
        self._call(f"writing to {quoted(stream)}", timeout, commands.StreamWrite(octets_of(stream)))

    def read(self, stream: Text, pattern: Text = b"", after: int | None = None, timeout: float | None = None) -> None:
        """Subscribe: :meth:`receive` returns messages whose subject matches. A stream may have several patterns.

        :param pattern: a regular expression that is searched in the subject (see
            :mod:`mama_spark.malamute.protocol.patterns`); empty = all
        :param after: replay stored messages with a higher sequence first (0 = all); None = only new messages
        :raises CallFailed: the broker refuses the pattern
        :raises ConfigError: ``after`` with a broker that stores nothing
        """
        if after is not None:
            self._require(Feature.SEQUENCE, "keeps no messages that could be read again")
        what = f"reading {quoted(stream)} with {quoted(pattern)}"
        trailing = write(Extension(after=after))
        self._call(what, timeout, commands.StreamRead(octets_of(stream), octets_of(pattern), trailing))

    def cancel(self, stream: Text, timeout: float | None = None) -> None:
        """End all subscriptions of the stream."""
        self._call(f"cancelling {quoted(stream)}", timeout, commands.StreamCancel(octets_of(stream)))

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
        extension = Extension(message_id=octets_of(id), headers=pairs) if id or pairs else None
        self._send_when_ready(timeout, frames, lambda: self._send(octets_of(subject), frames, extension), stream=True)

    def _send(self, subject: bytes, frames: Sequence[bytes], extension: Extension | None) -> None:
        self._machine.send(subject, frames, extension)
        if self._unsynced is None:
            self._unsynced = self.reconnects

    def sync(self, timeout: float | None = None) -> tuple[AckRun, ...]:
        """Wait until the broker has received all messages sent.

        :returns: outcomes of the messages since the last call, in order; grouped by stream, in the order of their first
            messages. Empty with a C broker
        :raises Unavailable: the connection was lost: the outcomes are unknown
        """
        with self._connection.changed:
            since, self._unsynced = self._unsynced, None
        call = self._call("waiting for the broker", timeout, commands.Ping())
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
        command = commands.ServiceOffer(octets_of(service), octets_of(pattern))
        self._call(f"offering {quoted(service)}", timeout, command)

    def confirm(self, message: Message, code: int = StatusCode.SUCCESS, reason: str = "") -> None:
        """Confirm a message with a tracker to its sender: :attr:`StatusCode.SUCCESS`, or a failure."""
        with self._connection.changed:
            self._machine.confirm(octets_of(message.tracker), code, reason.encode())
        self._connection.wake()

    # --- receiving -----------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message:
        """The next message of any kind.

        :raises Unavailable: no message in time; the text says whether the client is connected
        :raises ClientClosed: the client was closed
        """
        self._await(lambda: bool(self._inbox), timeout, "waiting for a message")
        with self._connection.changed:
            command = self._inbox.popleft()
            self._consume()
        message = message_of(command)
        if self._confirm and message.tracker and Feature.CONFIRM in self.features:
            self.confirm(message)
        return message

    def give_credit(self, messages: int) -> None:
        """Allow the broker to deliver ``messages`` more, of all kinds together; for ``window=0``."""
        with self._connection.changed:
            self._machine.give_credit(messages)
        self._connection.wake()

    def _consume(self) -> None:
        """Give credit for messages that the application received, in few commands."""
        if not self._gives_credit:
            return
        self._consumed += 1
        if self._consumed * 2 >= (self._window or 0):
            self._machine.give_credit(self._consumed)
            self._consumed = 0
            self._connection.wake()

    # --- machine and connection ----------------------------------------------------------------------------------

    @property
    def _machine(self) -> ClientMachine:
        return self._connection.machine

    def _seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _require(self, feature: Feature, what: str) -> None:
        if feature not in self.features:
            raise ConfigError(f"{self._connection.endpoint}: this broker {what}")

    def _call(self, what: str, timeout: float | None, command: Command) -> Call:
        connection = self._connection
        with connection.changed:
            if connection.fatal is not None:
                raise connection.fatal
            try:
                now, machine = time.monotonic(), connection.machine
                end = now + self._seconds(timeout)
                call = machine.ping(now, end) if isinstance(command, commands.Ping) else machine.call(command, end)
            except ClientClosed as e:
                raise ClientClosed(connection.explain(what, str(e))) from e
        connection.wait(call, what)
        return call

    def _send_when_ready(
        self, timeout: float | None, frames: Sequence[bytes], send: Callable[[], object], stream: bool = False
    ) -> None:
        """Send a command without an answer, as soon as the client is connected and the send window allows it."""
        connection = self._connection

        def ready() -> bool:
            may_send = not stream or connection.machine.send_window.may_send
            return connection.connected and connection.capacity > 0 and may_send

        def now() -> None:
            send()
            connection.count_queued(sum(map(len, frames)) + 64)

        self._await(ready, timeout, "sending", then=now)
        connection.wake()

    def _await(
        self, condition: Callable[[], bool], timeout: float | None, what: str, then: Callable[[], object] | None = None
    ) -> None:
        connection = self._connection

        def over() -> bool:
            self._dispatch()
            return condition() or connection.fatal is not None or connection.machine.state in _ENDED

        with connection.changed:
            connection.changed.wait_for(over, self._seconds(timeout))
            if condition():
                if then is not None:
                    then()
                return
            if connection.fatal is not None:
                raise connection.fatal
            if connection.machine.state in _ENDED:
                raise ClientClosed(connection.explain(what, f"not connected ({connection.machine.state.value})"))
            state = "nothing in time" if connection.connected else "not connected"
            raise Unavailable(connection.explain(what, f"{state} ({self._seconds(timeout):g} s)"))

    def _dispatch(self) -> None:
        """Pass confirmations to their trackers, and deliveries to the inbox."""
        received, self._machine.received = self._machine.received, []
        for command in received:
            if isinstance(command, commands.Confirm):
                if (tracker := self._trackers.pop(command.tracker, None)) is not None:
                    tracker._confirmation = command
            else:
                self._inbox.append(command)

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
            tracker = Tracker(self, f"{id(self):x}-{next(self._numbers)}")
            self._trackers[tracker.name.encode()] = tracker
        name = tracker.name.encode() if tracker else b""
        message = cls(octets_of(address), octets_of(subject), name, int(expires * 1000), frames_of(content))
        try:
            self._send_when_ready(timeout, message.content, lambda: self._machine.send_message(message))
        except MamaError:
            self._trackers.pop(name, None)
            raise
        return tracker

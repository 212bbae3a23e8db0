"""The Malamute client: streams, mailboxes and services of a broker, from any thread.

It speaks to the C broker and to ours; what only ours can do (credit, sequences, ids, headers, acknowledgements,
confirmations) is refused with :class:`~mama_spark.errors.ConfigError` elsewhere. Every call has a deadline.
A connection that is lost is made again, and what was written to, read and offered is said again; what was sent and not
acknowledged may be lost then: :meth:`MalamuteClient.sync` tells.

::

    with MalamuteClient("mlp://127.0.0.1:9999", "reader") as client:
        client.read("weather", "^temp")
        message = client.receive(timeout=10)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from mama_spark.errors import ClientClosed, ConfigError, MamaError, Unavailable

from ..protocol import commands
from ..protocol.commands import Command, StatusCode
from ..protocol.extensions import AckRun, Extension, Feature, read
from .connection import FEATURES, ClientConnection, ConnectionSettings
from .state_machine import Call, CallFailed, ClientState, NoStream

__all__ = ["CallFailed", "MalamuteClient", "Message", "NoStream", "Tracker"]

Text = str | bytes
_OVER = (ClientState.START, ClientState.CLOSED, ClientState.FAILED)
#: Messages that may wait for the application, unless the client is made with another window.
WINDOW = 1000


@dataclass(frozen=True, slots=True)
class Message:
    """What was delivered.

    :ivar kind: ``stream``, ``mailbox`` or ``service``
    :ivar address: the stream, the mailbox or the service
    :ivar sender: address of the client that sent it, empty for an anonymous one
    :ivar content: frames
    :ivar tracker: of a mailbox or service message whose sender wants to know its fate
    :ivar sequence: its number in the stream, where that is stored; ``time`` of storage in µs since the epoch
    :ivar headers: name and value; a name may come several times
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


class Tracker:
    """The fate of a mailbox or service message."""

    def __init__(self, client: MalamuteClient, name: str) -> None:
        self.name = name
        self._client = client
        self._fate: commands.Confirm | None = None

    def __repr__(self) -> str:
        state = "unknown" if self._fate is None else f"{self._fate.code} {_text(self._fate.reason)}".strip()
        return f"<Tracker {self.name} {state}>"

    @property
    def done(self) -> bool:
        return self._fate is not None

    def wait(self, timeout: float | None = None) -> None:
        """Until the receiver has confirmed.

        :raises CallFailed: it did not arrive, or the receiver says that it failed; the text says why
        :raises Unavailable: nothing is known after ``timeout`` seconds
        """
        self._client._await(lambda: self.done, timeout, f"the fate of {self.name}")
        assert self._fate is not None
        if self._fate.code >= StatusCode.FAILED:
            raise CallFailed(f"message {self.name}", self._fate.code, self._fate.reason)


class MalamuteClient:
    """One client. Thread-safe; open it with :meth:`open`, or by ``with``.

    :param url: of the broker, ``mlp://host:port``; several, separated by commas, are tried in turn
    :param address: where mail for this client goes, and what receivers see as sender; empty = anonymous
    :param timeout: seconds that a call may take unless it is told otherwise
    :param window: messages that may wait for :meth:`receive`; the broker holds the others. 0 = the application calls
        :meth:`give_credit`, None = no limit, as the C client
    :param confirm: :meth:`receive` confirms mailbox and service messages that want it; else :meth:`confirm` does
    :param options: see :class:`~mama_spark.malamute.client.connection.ConnectionSettings`: ``user``, ``password``, ...
    """

    def __init__(
        self,
        url: str = "mlp://127.0.0.1:9999",
        address: str = "",
        *,
        timeout: float = 5.0,
        window: int | None = WINDOW,
        confirm: bool = True,
        **options: Any,
    ) -> None:
        features = options.pop("features", FEATURES)
        if window is None and features is not None:
            features &= ~Feature.CREDIT
        urls = tuple(part.strip() for part in url.split(",") if part.strip())
        self.timeout = timeout
        self._link = ClientConnection(ConnectionSettings(urls, address, features=features, **options))
        self._window, self._confirm = window, confirm
        self._consumed = 0
        self._unsynced: int | None = None  # reconnects before the first send that no sync covers
        self._gives_credit = bool(window) and Feature.CREDIT in (features or Feature(0))
        self._inbox: deque[Command] = deque()
        self._trackers: WeakValueDictionary[bytes, Tracker] = WeakValueDictionary()  # a fate may never be told
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<MalamuteClient {self._link.endpoint} {self._link.machine.state.value}, {len(self._inbox)} received>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def features(self) -> Feature:
        """What the broker does for us; nothing if it is not ours."""
        return self._link.machine.features

    @property
    def reconnects(self) -> int:
        return self._link.machine.reconnects

    # --- connection ----------------------------------------------------------------------------------------------

    def open(self, timeout: float | None = None) -> Self:
        """Connect.

        :raises Unavailable: nobody answers
        :raises ConfigError: login or key are refused
        :raises CallFailed: the broker refuses this client
        """
        if self._window and self._gives_credit:
            self._link.machine.give_credit(self._window)
        self._link.open(self._seconds(timeout))
        return self

    def close(self, timeout: float | None = None) -> None:
        """Say good-bye behind all that was sent, and wait for the answer. Idempotent, never raises."""
        self._link.close(self._seconds(timeout))

    # --- streams -------------------------------------------------------------------------------------------------

    def write(self, stream: Text, timeout: float | None = None) -> None:
        """What :meth:`send` sends goes to this stream from now on; the stream is made if there is none.

        :raises CallFailed: the broker refuses; the text says why
        :raises Unavailable: no answer in time
        """
        self._ask(f"writing to {_shown(stream)}", timeout, lambda m, end: m.write(_octets(stream), end))

    def read(self, stream: Text, pattern: Text = b"", after: int | None = None, timeout: float | None = None) -> None:
        """Messages whose subject the pattern matches come to :meth:`receive`; there may be several patterns.

        :param pattern: a regular expression that is searched in the subject (see
            :mod:`mama_spark.malamute.protocol.patterns`); empty = all
        :param after: what is stored with a higher sequence comes first (0 = all); None = only what comes from now on
        :raises CallFailed: the broker does not take the pattern
        :raises ConfigError: ``after``, of a broker that stores nothing
        """
        if after is not None:
            self._need(Feature.SEQUENCE, "keeps no messages that could be read again")
        what = f"reading {_shown(stream)} with {_shown(pattern)}"
        self._ask(what, timeout, lambda m, end: m.read(_octets(stream), _octets(pattern), end, after))

    def cancel(self, stream: Text, timeout: float | None = None) -> None:
        """End all subscriptions of the stream."""
        self._ask(f"cancelling {_shown(stream)}", timeout, lambda m, end: m.cancel(_octets(stream), end))

    def send(
        self,
        subject: Text,
        content: bytes | Sequence[bytes] = (),
        *,
        id: Text = b"",
        headers: Mapping[str, Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """To the stream of :meth:`write`. Not answered: :meth:`sync` tells what became of it.

        :param content: a frame, or several
        :param id: a durable stream stores an id once
        :raises NoStream: nothing was written to
        :raises Unavailable: not connected, or the broker takes nothing, for ``timeout`` seconds
        :raises ConfigError: ids or headers through a broker that is not ours
        """
        pairs = tuple((k.encode(), v.encode()) for k, values in (headers or {}).items() for v in values)
        if id or pairs:
            self._need(Feature.HEADERS, "carries neither ids nor headers")
        frames = _frames(content)
        extension = Extension(message_id=_octets(id), headers=pairs) if id or pairs else None
        self._say("sending", timeout, frames, lambda: self._send(_octets(subject), frames, extension), stream=True)

    def _send(self, subject: bytes, frames: Sequence[bytes], extension: Extension | None) -> None:
        self._machine.send(subject, frames, extension)
        if self._unsynced is None:
            self._unsynced = self.reconnects

    def sync(self, timeout: float | None = None) -> tuple[AckRun, ...]:
        """Wait until the broker has all that was sent.

        :returns: what became of the messages since the last call, in order, those of the stream that was sent to first
            before the others; nothing from a broker that is not ours
        :raises Unavailable: the connection was lost: nobody knows what became of them
        """
        with self._link.changed:
            since, self._unsynced = self._unsynced, None
        call = self._ask("waiting for the broker", timeout, lambda m, end: m.ping(time.monotonic(), end))
        if since is not None and since != self.reconnects:
            raise Unavailable(self._link.explain("waiting for the broker", "the connection was lost behind messages"))
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
        """To the client with this address, now or when it comes.

        :param expires: seconds after which it need not be delivered any more; 0 = never
        :param tracked: return a :class:`Tracker`
        """
        return self._letter(commands.MailboxSend, address, subject, content, expires, tracked, timeout)

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
        """To one of those that offer the service, now or when there is one; parameters as :meth:`mailbox`."""
        return self._letter(commands.ServiceSend, service, subject, content, expires, tracked, timeout)

    def offer(self, service: Text, pattern: Text = b"", timeout: float | None = None) -> None:
        """Take requests to the service whose subject the pattern matches.

        :raises CallFailed: the broker does not take the pattern
        """
        self._ask(
            f"offering {_shown(service)}", timeout, lambda m, end: m.offer(_octets(service), _octets(pattern), end)
        )

    def confirm(self, message: Message, code: int = StatusCode.SUCCESS, reason: str = "") -> None:
        """Tell its sender what became of a message with a tracker: :attr:`StatusCode.SUCCESS`, or that it failed."""
        with self._link.changed:
            self._machine.confirm(_octets(message.tracker), code, reason.encode())
        self._link.wake()

    # --- receiving -----------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message:
        """The next message of any kind.

        :raises Unavailable: none came in time; the text says whether the client is connected
        :raises ClientClosed: the client was closed
        """
        self._await(lambda: bool(self._inbox), timeout, "waiting for a message")
        with self._link.changed:
            command = self._inbox.popleft()
            self._consume()
        message = _message(command)
        if self._confirm and message.tracker and Feature.CONFIRM in self.features:
            self.confirm(message)
        return message

    def give_credit(self, messages: int) -> None:
        """The broker may deliver so many messages more, of all kinds together; for ``window=0``."""
        with self._link.changed:
            self._machine.give_credit(messages)
        self._link.wake()

    def _consume(self) -> None:
        """Credit for what the application took, in few commands."""
        if not self._gives_credit:
            return
        self._consumed += 1
        if self._consumed * 2 >= (self._window or 0):
            self._machine.give_credit(self._consumed)
            self._consumed = 0
            self._link.wake()

    # --- how -----------------------------------------------------------------------------------------------------

    @property
    def _machine(self) -> Any:
        return self._link.machine

    def _seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _need(self, feature: Feature, what: str) -> None:
        if feature not in self.features:
            raise ConfigError(f"{self._link.endpoint}: this broker {what}")

    def _ask(self, what: str, timeout: float | None, make: Callable[[Any, float], Call]) -> Call:
        link = self._link
        with link.changed:
            if link.fatal is not None:
                raise link.fatal
            try:
                call = make(link.machine, time.monotonic() + self._seconds(timeout))
            except ClientClosed as e:
                raise ClientClosed(link.explain(what, str(e))) from e
        link.wait(call, what)
        return call

    def _say(
        self,
        what: str,
        timeout: float | None,
        frames: Sequence[bytes],
        say: Callable[[], object],
        stream: bool = False,
    ) -> None:
        """What is not answered: as soon as there is a connection and room for it, and the broker takes it."""
        link = self._link

        def ready() -> bool:
            return link.connected and link.room > 0 and (link.machine.may_send or not stream)

        def now() -> None:
            say()
            link.account(sum(map(len, frames)) + 64)

        self._await(ready, timeout, what, then=now)
        link.wake()

    def _await(
        self, condition: Callable[[], bool], timeout: float | None, what: str, then: Callable[[], object] | None = None
    ) -> None:
        link = self._link

        def over() -> bool:
            self._sort()
            return condition() or link.fatal is not None or link.machine.state in _OVER

        with link.changed:
            link.changed.wait_for(over, self._seconds(timeout))
            if condition():
                if then is not None:
                    then()
                return
            if link.fatal is not None:
                raise link.fatal
            if link.machine.state in _OVER:
                raise ClientClosed(link.explain(what, f"not connected ({link.machine.state.value})"))
            state = "nothing in time" if link.connected else "not connected"
            raise Unavailable(link.explain(what, f"{state} ({self._seconds(timeout):g} s)"))

    def _sort(self) -> None:
        """Confirmations to their trackers, deliveries to the inbox."""
        received, self._machine.received = self._machine.received, []
        for command in received:
            if isinstance(command, commands.Confirm):
                tracker = self._trackers.pop(command.tracker, None)
                if tracker is not None:
                    tracker._fate = command
            else:
                self._inbox.append(command)

    def _letter(
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
            self._need(Feature.CONFIRM, "tells nothing of the fate of messages")
            tracker = Tracker(self, f"{id(self):x}-{next(self._numbers)}")
            self._trackers[tracker.name.encode()] = tracker
        name = tracker.name.encode() if tracker else b""
        letter = cls(_octets(address), _octets(subject), name, int(expires * 1000), _frames(content))
        try:
            self._say("sending", timeout, _frames(content), lambda: self._machine.mailbox(letter))
        except MamaError:
            self._trackers.pop(name, None)
            raise
        return tracker


def _message(command: Command) -> Message:
    if isinstance(command, commands.StreamDeliver):
        message = Message(
            "stream", _text(command.address), _text(command.sender), _text(command.subject), tuple(command.content)
        )
        if not command.trailing:
            return message
        x = read(command.trailing)
        headers = tuple((_text(name), _text(value)) for name, value in x.headers)
        return replace(message, sequence=x.sequence, time=x.time, id=_text(x.message_id), headers=headers)
    assert isinstance(command, commands.MailboxDeliver | commands.ServiceDeliver)
    kind = "mailbox" if isinstance(command, commands.MailboxDeliver) else "service"
    return Message(
        kind, _text(command.address), _text(command.sender), _text(command.subject), tuple(command.content),
        _text(command.tracker),
    )  # fmt: skip


def _octets(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _shown(text: Text) -> str:
    return repr(text if isinstance(text, str) else _text(text))


def _frames(content: bytes | Sequence[bytes]) -> tuple[bytes, ...]:
    return (content,) if isinstance(content, bytes) else tuple(content)

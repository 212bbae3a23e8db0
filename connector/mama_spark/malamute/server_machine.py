"""The broker's side of MLP: what every command of every client leads to. Pure.

:class:`ServerMachine` takes frames and times and gives values: frames to send (:attr:`~ServerMachine.out`) and commands
for the engines of streams (:attr:`~ServerMachine.orders`). It never raises for what a client sends. A client is known
by its routing id and nothing else; one that is not connected has no state here, so strangers cost nothing.

Replies to one client keep the order of its commands, also where an engine has to answer first: READ is answered when
the engine has compiled the pattern, the PONG behind the sends of a client that asked for it when the engine has them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from . import wire
from .clients import Client, Settings, Slot
from .credit import WINDOW_OCTETS, Shares
from .engines import Delivery
from .extensions import NOTHING, AckRun, Extension, Feature, Outcome, read, write
from .letters import Letter, Services, Store
from .patterns import BadPattern, Pattern
from .queues import ByteQueue, Overflow
from .server_outbox import Outbox, error_frames
from .server_states import EVENTS, TABLE, Event, State
from .wire import BadFrame, Command, StatusCode

#: Seconds from which a PONG does not wait for engines that start: clients ping once a second, and give up after four.
SLOW_START = 1.0
_NOBODY = Client(b"", b"", Feature(0), 0.0, alive=False)
_OK = wire.encode(wire.Ok())
_OK_STORED = wire.encode(wire.Ok(trailing=write(Extension(stored=1))))
_PONG = wire.encode(wire.Pong())
_INVALID = wire.encode(wire.Error())


class _Awaited(NamedTuple):
    """A command that an engine answers."""

    client: Client
    slot: Slot
    pattern: bytes | None = None  #: of a fresh READ
    cancel: bool = False


class ServerMachine(Outbox):
    """All clients of one broker. Not thread-safe: one loop drives it.

    :param holds: does the engine of this stream hold what is beyond a client's credit
    """

    def __init__(self, settings: Settings | None = None, holds: Callable[[bytes], bool] = lambda stream: False) -> None:
        super().__init__(settings or Settings())
        self.events: list[tuple[str, bytes, bytes, bytes]] = []  #: kind, client's address, stream, detail
        self.clients: OrderedDict[bytes, Client] = OrderedDict()  #: by routing id, longest silent first
        self.addresses: dict[bytes, Client] = {}
        self.streams: set[bytes] = set()
        self.holding: set[bytes] = set()  #: those of them whose engine holds
        self.stored: set[bytes] = set()  #: those of them that are stored
        self.mailboxes = Store(self.settings.mailboxes)
        self.requests = Store(self.settings.services)
        self.services = Services()
        self.opening: dict[bytes, float] = {}  #: streams whose engine has not started, and since when
        self._early: dict[bytes, int] = {}  # octets that were sent to them
        self._holds = holds
        self._awaited: dict[bytes, deque[_Awaited]] = {}
        self._deadlines: list[tuple[float, int, Letter]] = []
        self._tidy_at = 1024
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<ServerMachine {len(self.clients)} clients, {len(self.streams)} streams>"

    # --- in ------------------------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> None:
        """What the client with this routing id sent."""
        self.now = now
        client = self.clients.get(identity)
        if client is not None:
            client.seen = now
            self.clients.move_to_end(identity)
            if client.stream is not None:
                subject = wire.subject_of_send(frames)
                if subject is not None:  # the most frequent command, without a detour
                    self._accept(client, client.stream, subject, frames[1:], NOTHING if client.features else None)
                    return
        try:
            command = wire.decode(frames)
        except BadFrame:  # no reply, no change of state (the reference's rule for all that is no command)
            self.counters["malformed"] += 1
            return
        event = EVENTS.get(type(command), Event.SERVER_ONLY)
        if client is None:
            self._stranger(identity, event, command, now)
            return
        if event is Event.SEND:
            if client.stream is None:
                event = Event.SEND_NOWHERE
        elif event is Event.CONFIRM and Feature.CONFIRM not in client.features:
            event = Event.CONFIRM_UNASKED
        _DO[event](self, client, command, now)
        if TABLE[State.CONNECTED][event] is State.START:
            self._drop(client, event)

    def _stranger(self, identity: bytes, event: Event, command: Command, now: float) -> None:
        if isinstance(command, wire.Open):
            self._open(identity, command, now)
        elif event is Event.CLOSE:  # the reference dies of this
            self.out.append((identity, _OK))
        else:
            self.counters["refused"] += 1
            self.out.append((identity, _INVALID))

    def expire(self, now: float) -> None:
        """Drop silent clients and letters that are too old; let unused credit go round."""
        self.now = now
        self._rotate(now)
        if self.settings.timeout:
            while self.clients:
                client = next(iter(self.clients.values()))
                if client.seen + self.settings.timeout > now:
                    break
                self.counters["expired"] += 1
                self._drop(client, Event.EXPIRED)
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(heapq.heappop(self._deadlines)[2])
        for letter in (*self.mailboxes.discard(due), *self.requests.discard(due)):
            self._tell(letter, StatusCode.FAILED, b"timeout")

    def next_expiry(self) -> float | None:
        """When :meth:`expire` has something to do at the earliest; None = nothing is in sight."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self.settings.timeout and self.clients:
            times.append(next(iter(self.clients.values())).seen + self.settings.timeout)
        times += [client.shares.due for client in self._turns if client.shares.due is not None]
        return min(times, default=None)

    # --- connection ----------------------------------------------------------------------------------------------

    def _open(self, identity: bytes, command: wire.Open, now: float) -> None:
        announced = read(command.trailing).features
        client = Client(identity, command.address, (announced or Feature(0)) & self.settings.features, now)
        client.queue = ByteQueue(self.settings.queue, None, self.settings.overflow)
        client.unconfirmed = ByteQueue(self.settings.queue, None, Overflow.DROP_OLDEST)
        client.shares = Shares(min(WINDOW_OCTETS, self.settings.queue))
        if Feature.CREDIT in client.features:
            client.credit = 0
        if client.address:
            older = self.addresses.get(client.address)
            if older is not None:
                self._drop(older, Event.TAKEN_OVER)
            self.addresses[client.address] = client
        self.clients[identity] = client
        trailing = b"" if announced is None else write(Extension(features=client.features))
        self._reply(client, wire.encode(wire.Ok(trailing=trailing)))
        self._event("CONNECTED", client)
        if client.address:
            self._hand_over(client, self.mailboxes.take(client.address))

    def _open_again(self, client: Client, command: Command, now: float) -> None:
        self._reply(client, _INVALID)

    def _close(self, client: Client, command: Command, now: float) -> None:
        self._reply(client, _OK)

    def _ping(self, client: Client, command: Command, now: float) -> None:
        if Feature.ACKS not in client.features or not client.sent:
            slow = any(now - since > SLOW_START for since in self.opening.values())
            if slow and not any(slot.syncs for slot in client.slots):
                self._emit(client, _PONG)  # ahead of its turn: the broker must not look dead
            else:
                self._reply(client, _PONG)
            return
        slot = Slot(pong_for=sum(client.sent.values()), syncs=len(client.sent))
        for stream in client.sent:
            self._order_awaited(stream, ("SYNC", client), client, slot)
        client.sent = {}
        client.slots.append(slot)

    def _drop(self, client: Client, event: Event) -> None:
        """Forget the client; it is told nothing beyond what has been said."""
        if not client.alive:
            return
        client.alive = False
        if event is not Event.CLOSE:
            self.counters["dropped"] += 1
        for slot in client.slots:  # what stands ready in front of an awaited answer goes out still
            if slot.frames is not None and not slot.silent:
                self.out.append((client.identity, slot.frames))
        client.slots.clear()
        self.clients.pop(client.identity, None)
        if self.addresses.get(client.address) is client:
            del self.addresses[client.address]
        self.services.withdraw(client)
        for stream in client.reads:
            self._order_awaited(stream, ("CANCEL", client), client, Slot(silent=True))
            self._event("UNSUBSCRIBED", client, stream)
        letters = [*client.unconfirmed, *(letter for _, letter in client.queue if letter is not None)]
        client.queue, client.unconfirmed, client.replies = ByteQueue(0), ByteQueue(0), ByteQueue(0)
        client.held = ByteQueue(0)
        for letter in reversed(letters):
            self._return(letter)
        self._event("GONE", client, detail=event.value.encode())

    def _return(self, letter: Letter) -> None:
        """Its receiver is gone without a CONFIRM: somebody else gets it, or the next owner of the address."""
        if letter.service:
            self._request(letter)
            return
        owner = self.addresses.get(letter.address)
        if owner is not None:
            self._hand_over(owner, [letter])
        else:
            self.mailboxes.put_back(letter)
            self._remember_deadline(letter)

    # --- streams -------------------------------------------------------------------------------------------------

    def _write(self, client: Client, command: wire.StreamWrite, now: float) -> None:
        if client.stream == command.stream and not self._answer_repeat(client, now):
            return
        if command.stream == self.settings.events and command.stream:
            self._fail(client, b"the stream is the broker's own")
            return
        if not self._stream(client, command.stream):
            return
        if client.stream != command.stream:
            client.stream = command.stream
            self._event("WRITING", client, command.stream)
        self._await(client, command.stream, ("TRAFFIC",), writes=True)

    def _read(self, client: Client, command: wire.StreamRead, now: float) -> None:
        fresh = command.pattern not in client.reads.get(command.stream, ())
        if not fresh and not self._answer_repeat(client, now):
            return
        if fresh and sum(map(len, client.reads.values())) >= self.settings.patterns:
            self._fail(client, b"too many subscriptions")
            return
        if not self._stream(client, command.stream):
            return
        after = read(command.trailing).after if Feature.SEQUENCE in client.features else None
        order = ("COMPILE", client, command.pattern, after)
        self._await(client, command.stream, order, command.pattern if fresh else None)
        if command.stream not in client.reads:
            client.reads[command.stream] = set()
            if command.stream in self.holding:  # nothing until some is lent
                self._order(command.stream, ("CREDIT", client, 0))
                client.shares.join(command.stream)
                self._balance(client)
        client.reads[command.stream].add(command.pattern)

    def _cancel(self, client: Client, command: wire.StreamCancel, now: float) -> None:
        if client.reads.pop(command.stream, None) is None:
            self._reply(client, _OK)  # never read: the reference makes the stream, ours does not
            return
        self._await(client, command.stream, ("CANCEL", client))
        client.shares.leave(command.stream)
        self._event("UNSUBSCRIBED", client, command.stream)

    def _send(self, client: Client, command: wire.StreamSend, now: float) -> None:
        assert client.stream is not None
        extension = read(command.trailing) if client.features else None
        self._accept(client, client.stream, command.subject, command.content, extension)

    def _accept(
        self, client: Client, stream: bytes, subject: bytes, content: Sequence[bytes], extension: Extension | None
    ) -> None:
        if self.opening and stream in self.opening and not self._ahead(client, stream, content):
            return
        if Feature.ACKS in client.features:
            client.sent[stream] = client.sent.get(stream, 0) + 1
        self._order(stream, ("ACCEPT", client, client.address, subject, content, extension))

    def _ahead(self, client: Client, stream: bytes, content: Sequence[bytes]) -> bool:
        """May the client send before its stream is open? Whoever does not wait for the answer to WRITE, so far."""
        self._early[stream] += sum(map(len, content)) + 32
        if self._early[stream] <= self.settings.queue:
            return True
        self._fail(client, b"the stream is not open yet")
        self._drop(client, Event.AHEAD)
        return False

    def _send_nowhere(self, client: Client, command: Command, now: float) -> None:
        self._fail(client, b"")

    def _stream(self, client: Client, stream: bytes) -> bool:
        if stream not in self.streams:
            if len(self.streams) >= self.settings.streams:
                self._fail(client, b"too many streams")
                return False
            self._add_stream(stream)
        return True

    def _add_stream(self, stream: bytes) -> None:
        if stream not in self.streams:
            self.streams.add(stream)
            self.opening[stream] = self.now
            self._early[stream] = 0
            if self._holds(stream):
                self.holding.add(stream)

    def _await(
        self, client: Client, stream: bytes, order: tuple[Any, ...], pattern: bytes | None = None, writes: bool = False
    ) -> None:
        slot = Slot(writes=writes)
        client.slots.append(slot)
        self._order_awaited(stream, order, client, slot, pattern)

    def _order_awaited(
        self, stream: bytes, order: tuple[Any, ...], client: Client, slot: Slot, pattern: bytes | None = None
    ) -> None:
        self._awaited.setdefault(stream, deque()).append(_Awaited(client, slot, pattern, order[0] == "CANCEL"))
        self._order(stream, order)

    # --- answers of engines --------------------------------------------------------------------------------------

    def taken(self, stream: bytes, error: str | None = None, runs: tuple[AckRun, ...] = ()) -> None:
        """The engine did its oldest TRAFFIC, COMPILE, CANCEL or SYNC that was not answered yet.

        :param error: why it refused the pattern
        :param runs: what it says to SYNC
        """
        client, slot, pattern, cancel = self._awaited[stream].popleft()
        if self.opening and self.opening.pop(stream, None) is not None:
            del self._early[stream]
        if cancel and client.alive:
            client.shares.left(stream)
            self._release(client)
            self._balance(client)
        if slot.syncs:
            slot.runs += runs
            slot.syncs -= 1
            if slot.syncs:
                return
            acks = slot.runs or (AckRun(Outcome.ACCEPTED, slot.pong_for),)
            slot.frames = wire.encode(wire.Pong(write(Extension(acks=acks))))
        elif error is None:
            told = slot.writes and stream in self.stored and Feature.ACKS in client.features
            slot.frames = _OK_STORED if told else _OK
            if pattern is not None and client.alive:
                self._event("SUBSCRIBED", client, stream, pattern)
        else:
            patterns = client.reads.get(stream)
            if patterns is not None and pattern is not None:
                patterns.discard(pattern)
                if not patterns:
                    del client.reads[stream]
                    client.shares.leave(stream)
                    self._order_awaited(stream, ("CANCEL", client), client, Slot(silent=True))
            slot.frames = error_frames(StatusCode.FAILED, error.encode())
            self._event("REFUSED", client, stream, error.encode())
        if not slot.silent:
            self._advance(client)

    def opened(self, stream: bytes, stored: bool = False) -> None:
        """The shell said TRAFFIC to a new engine before all that is in :attr:`orders`; its answer is nobody's.

        :param stored: what the engine says of itself
        """
        if stored:
            self.stored.add(stream)
        self._awaited.setdefault(stream, deque()).appendleft(_Awaited(_NOBODY, Slot(silent=True)))

    def lost(self, stream: bytes, reason: str) -> None:
        """The engine of a stream is gone: whoever waits for it is told (ERROR 502), nobody reads there any more."""
        self.events.append(("STREAM_LOST", b"", stream, reason.encode()))
        self.orders.pop(stream, None)
        self.streams.discard(stream)
        self.streams.discard(stream)
        self.holding.discard(stream)
        self.opening.pop(stream, None)
        self._early.pop(stream, None)
        for client, slot, *_ in self._awaited.pop(stream, ()):
            slot.frames = error_frames(StatusCode.INTERNAL_ERROR, reason.encode())
            slot.syncs = 0
            self._advance(client)
        for client in self.clients.values():
            client.reads.pop(stream, None)
            client.sent.pop(stream, None)
            if client.stream == stream:
                client.stream = None
            client.shares.lost(stream)
            self._release(client)
            self._balance(client)

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """What the engine of a stream has for clients (ML-17)."""
        holding = stream in self.holding
        low: dict[Client, None] = {}
        for client, sender, subject, content, extension in deliveries:
            if isinstance(client, Client) and client.alive:  # no delivery to one that is gone
                trailing = b""
                if extension is not None and client.features:
                    trailing = write(_for_client(extension, client.features))
                frame = wire.deliver_frame(stream, sender, subject, trailing)
                if not holding:
                    self._deliver(client, [frame, *content])
                elif self._deliver_lent(client, stream, [frame, *content]):
                    low[client] = None
        for client in low:
            self._balance(client)

    def returned(self, stream: bytes, client: Hashable, amount: int) -> None:
        """The engine gave back what it had left of the client's credit."""
        if isinstance(client, Client) and client.alive:
            client.shares.returned(stream, amount)
            self._release(client)
            self._balance(client)

    # --- mailboxes and services ----------------------------------------------------------------------------------

    def _mailbox_send(self, client: Client, command: wire.MailboxSend, now: float) -> None:
        letter = self._letter(client, command, now, service=False)
        receiver = self.addresses.get(letter.address)
        if receiver is not None:
            self._hand_over(receiver, [letter])
        else:
            self._keep(self.mailboxes, letter)

    def _service_send(self, client: Client, command: wire.ServiceSend, now: float) -> None:
        self._request(self._letter(client, command, now, service=True))

    def _request(self, letter: Letter) -> None:
        worker = self.services.choose(letter.address, letter.subject)
        if isinstance(worker, Client):
            self._hand_over(worker, [letter])
        else:
            self._keep(self.requests, letter)

    def _letter(
        self, client: Client, command: wire.MailboxSend | wire.ServiceSend, now: float, service: bool
    ) -> Letter:
        deadline = now + command.timeout / 1000 if command.timeout else 0.0
        return Letter(
            service, client, client.address, command.address, command.subject, command.tracker, deadline,
            command.content,
        )  # fmt: skip

    def _keep(self, store: Store, letter: Letter) -> None:
        lost = store.put(letter)
        for one in lost:
            self.counters["lost_letters"] += 1
            self._tell(one, StatusCode.FAILED, b"no room")
        if letter.kept:
            self._remember_deadline(letter)

    def _remember_deadline(self, letter: Letter) -> None:
        if not letter.deadline:
            return
        if len(self._deadlines) >= self._tidy_at:  # letters that were taken must not stay until their deadline
            self._deadlines = [entry for entry in self._deadlines if entry[2].kept]
            heapq.heapify(self._deadlines)
            self._tidy_at = max(1024, 2 * len(self._deadlines))
        heapq.heappush(self._deadlines, (letter.deadline, next(self._numbers), letter))

    def _offer(self, client: Client, command: wire.ServiceOffer, now: float) -> None:
        key = (command.address, command.pattern)
        if key in client.offers:
            if self._answer_repeat(client, now):
                self._reply(client, _OK)
            return
        if len(client.offers) >= self.settings.patterns:
            self._fail(client, b"too many offers")
            return
        try:
            pattern = Pattern(command.pattern)
        except BadPattern as e:
            self._fail(client, str(e).encode())
            return
        client.offers.add(key)
        self.services.offer(client, command.address, pattern)
        self._reply(client, _OK)
        self._hand_over(client, self.requests.take(command.address, pattern))

    def _hand_over(self, receiver: Client, letters: Iterable[Letter]) -> None:
        for letter in letters:
            if not receiver.alive:
                self._return(letter)
                continue
            cls = wire.ServiceDeliver if letter.service else wire.MailboxDeliver
            frames = wire.encode(cls(letter.source, letter.address, letter.subject, letter.tracker, letter.content))
            if not self._deliver(receiver, frames, letter):
                self.counters["lost_letters"] += 1
                self._tell(letter, StatusCode.FAILED, b"no room")

    def _handed_over(self, receiver: Client, letter: Letter) -> None:
        if letter.tracker and Feature.CONFIRM in receiver.features:
            for forgotten in receiver.unconfirmed.put(letter, letter.size):
                self._tell(forgotten, StatusCode.FAILED, b"not confirmed")
        else:
            self._tell(letter, StatusCode.SUCCESS, b"")

    def _confirm(self, client: Client, command: wire.Confirm, now: float) -> None:
        letter = next((one for one in client.unconfirmed if one.tracker == command.tracker), None)
        if letter is not None:
            client.unconfirmed.remove({id(letter)})
            self._tell(letter, command.code, command.reason)

    def _confirm_unasked(self, client: Client, command: Command, now: float) -> None:
        self._fail(client, b"")

    def _tell(self, letter: Letter, code: int, reason: bytes) -> None:
        """Its sender learns what became of a letter, if it asked."""
        sender = letter.sender
        if letter.tracker and isinstance(sender, Client) and sender.alive and Feature.CONFIRM in sender.features:
            self._emit(sender, wire.encode(wire.Confirm(letter.tracker, code, reason)))

    def publish(self, stream: bytes, subject: bytes, content: Sequence[bytes]) -> None:
        """A message of the broker itself."""
        self._add_stream(stream)
        self._order(stream, ("ACCEPT", _NOBODY, b"", subject, content, None))

    # --- events ------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, client: Client, stream: bytes = b"", detail: bytes = b"") -> None:
        self.events.append((kind, client.address, stream, detail))


def _for_client(extension: Extension, features: Feature) -> Extension:
    """What of it the client announced."""
    numbers = Feature.SEQUENCE in features
    headers = Feature.HEADERS in features
    return Extension(
        sequence=extension.sequence if numbers else None,
        time=extension.time if numbers else None,
        message_id=extension.message_id if headers else b"",
        headers=extension.headers if headers else (),
    )


_DO: dict[Event, Any] = {
    Event.OPEN: ServerMachine._open_again,
    Event.CLOSE: ServerMachine._close,
    Event.PING: ServerMachine._ping,
    Event.WRITE: ServerMachine._write,
    Event.READ: ServerMachine._read,
    Event.CANCEL: ServerMachine._cancel,
    Event.SEND: ServerMachine._send,
    Event.SEND_NOWHERE: ServerMachine._send_nowhere,
    Event.MAILBOX_SEND: ServerMachine._mailbox_send,
    Event.OFFER: ServerMachine._offer,
    Event.SERVICE_SEND: ServerMachine._service_send,
    Event.CREDIT: ServerMachine._credit,
    Event.CONFIRM: ServerMachine._confirm,
    Event.CONFIRM_UNASKED: ServerMachine._confirm_unasked,
    Event.SERVER_ONLY: ServerMachine._open_again,
}

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
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from . import wire
from .clients import Client, Frames, Settings, Slot
from .engines import Delivery
from .extensions import NOTHING, AckRun, Extension, Feature, Outcome, read, write
from .letters import Letter, Services, Store
from .patterns import BadPattern, Pattern
from .queues import ByteQueue, Overflow
from .server_states import EVENTS, TABLE, Event, State
from .wire import BadFrame, Command, StatusCode

_NOBODY = Client(b"", b"", Feature(0), 0.0, alive=False)
_OK = wire.encode(wire.Ok())
_OK_STORED = wire.encode(wire.Ok(trailing=write(Extension(stored=1))))
_PONG = wire.encode(wire.Pong())
_INVALID = wire.encode(wire.Error())


class ServerMachine:
    """All clients of one broker. Not thread-safe: one loop drives it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.out: list[tuple[Client | bytes, Frames]] = []  #: to send, in order; a stranger is its routing id
        self.orders: dict[bytes, list[tuple[Any, ...]]] = {}  #: stream -> commands for its engine, in order
        self.events: list[tuple[str, bytes, bytes, bytes]] = []  #: kind, client's address, stream, detail
        self.clients: OrderedDict[bytes, Client] = OrderedDict()  #: by routing id, longest silent first
        self.addresses: dict[bytes, Client] = {}
        self.streams: set[bytes] = set()
        self.stored: set[bytes] = set()  #: those of them that are stored
        self.mailboxes = Store(self.settings.mailboxes)
        self.requests = Store(self.settings.services)
        self.services = Services()
        self.counters = dict.fromkeys(
            ("malformed", "refused", "dropped", "lost_letters", "lost_deliveries", "expired", "repeats"), 0
        )
        self._awaited: dict[bytes, deque[tuple[Client, Slot, bytes | None]]] = {}
        self._deadlines: list[tuple[float, int, Letter]] = []
        self._tidy_at = 1024
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<ServerMachine {len(self.clients)} clients, {len(self.streams)} streams>"

    # --- in ------------------------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> None:
        """What the client with this routing id sent."""
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
        """Drop silent clients and letters that are too old."""
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
        return min(times, default=None)

    # --- connection ----------------------------------------------------------------------------------------------

    def _open(self, identity: bytes, command: wire.Open, now: float) -> None:
        announced = read(command.trailing).features
        client = Client(identity, command.address, (announced or Feature(0)) & self.settings.features, now)
        client.queue = ByteQueue(self.settings.queue, None, self.settings.overflow)
        client.unconfirmed = ByteQueue(self.settings.queue, None, Overflow.DROP_OLDEST)
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
        if not self._stream(client, command.stream):
            return
        client.stream = command.stream
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
            if client.credit is not None:
                self._order(command.stream, ("CREDIT", client, client.credit))
        client.reads[command.stream].add(command.pattern)

    def _cancel(self, client: Client, command: wire.StreamCancel, now: float) -> None:
        if client.reads.pop(command.stream, None) is None:
            self._reply(client, _OK)  # never read: the reference makes the stream, ours does not
            return
        self._await(client, command.stream, ("CANCEL", client))
        self._event("UNSUBSCRIBED", client, command.stream)

    def _send(self, client: Client, command: wire.StreamSend, now: float) -> None:
        assert client.stream is not None
        extension = read(command.trailing) if client.features else None
        self._accept(client, client.stream, command.subject, command.content, extension)

    def _accept(
        self, client: Client, stream: bytes, subject: bytes, content: Sequence[bytes], extension: Extension | None
    ) -> None:
        if Feature.ACKS in client.features:
            client.sent[stream] = client.sent.get(stream, 0) + 1
        self._order(stream, ("ACCEPT", client, client.address, subject, content, extension))

    def _send_nowhere(self, client: Client, command: Command, now: float) -> None:
        self._fail(client, b"")

    def _stream(self, client: Client, stream: bytes) -> bool:
        if stream not in self.streams:
            if len(self.streams) >= self.settings.streams:
                self._fail(client, b"too many streams")
                return False
            self.streams.add(stream)
        return True

    def _await(
        self, client: Client, stream: bytes, order: tuple[Any, ...], pattern: bytes | None = None, writes: bool = False
    ) -> None:
        slot = Slot(writes=writes)
        client.slots.append(slot)
        self._order_awaited(stream, order, client, slot, pattern)

    def _order_awaited(
        self, stream: bytes, order: tuple[Any, ...], client: Client, slot: Slot, pattern: bytes | None = None
    ) -> None:
        self._awaited.setdefault(stream, deque()).append((client, slot, pattern))
        self._order(stream, order)

    def _order(self, stream: bytes, order: tuple[Any, ...]) -> None:
        orders = self.orders.get(stream)
        if orders is None:
            self.orders[stream] = [order]
        else:
            orders.append(order)

    # --- answers of engines --------------------------------------------------------------------------------------

    def taken(self, stream: bytes, error: str | None = None, runs: tuple[AckRun, ...] = ()) -> None:
        """The engine did its oldest TRAFFIC, COMPILE, CANCEL or SYNC that was not answered yet.

        :param error: why it refused the pattern
        :param runs: what it says to SYNC
        """
        client, slot, pattern = self._awaited[stream].popleft()
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
            slot.frames = _error(StatusCode.FAILED, error.encode())
        if not slot.silent:
            self._advance(client)

    def opened(self, stream: bytes, stored: bool = False) -> None:
        """The shell said TRAFFIC to a new engine before all that is in :attr:`orders`; its answer is nobody's.

        :param stored: what the engine says of itself
        """
        if stored:
            self.stored.add(stream)
        self._awaited.setdefault(stream, deque()).appendleft((_NOBODY, Slot(silent=True), None))

    def lost(self, stream: bytes, reason: str) -> None:
        """The engine of a stream is gone: whoever waits for it is told (ERROR 502), nobody reads there any more."""
        self.orders.pop(stream, None)
        self.streams.discard(stream)
        self.stored.discard(stream)
        for client, slot, _ in self._awaited.pop(stream, ()):
            slot.frames = _error(StatusCode.INTERNAL_ERROR, reason.encode())
            slot.syncs = 0
            self._advance(client)
        for client in self.clients.values():
            client.reads.pop(stream, None)
            client.sent.pop(stream, None)
            if client.stream == stream:
                client.stream = None

    def delivered(self, stream: bytes, deliveries: Iterable[Delivery]) -> None:
        """What the engine of a stream has for clients (ML-17)."""
        for client, sender, subject, content, extension in deliveries:
            if isinstance(client, Client) and client.alive:  # no delivery to one that is gone
                trailing = b""
                if extension is not None and client.features:
                    trailing = write(_for_client(extension, client.features))
                frame = wire.deliver_frame(stream, sender, subject, trailing)
                self._deliver(client, [frame, *content])

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

    # --- credit, and what waits for it ---------------------------------------------------------------------------

    def _credit(self, client: Client, command: wire.Credit, now: float) -> None:
        client.credit = (client.credit or 0) + command.amount
        for stream in client.reads:
            self._order(stream, ("CREDIT", client, command.amount))
        self._release(client)

    def _deliver(self, client: Client, frames: Frames, letter: Letter | None = None) -> bool:
        """Send or keep a message that counts for credit; False if it is lost."""
        if not client.alive:
            return False
        if client.credit != 0 and not client.blocked and not len(client.queue):
            self._pass(client, frames, letter)
            return True
        lost = client.queue.put((frames, letter), _octets(frames))
        self.counters["lost_deliveries"] += len(lost)
        for _, other in lost:
            if other is not None and other is not letter:
                self._tell(other, StatusCode.FAILED, b"no room")
        if lost and client.queue.overflow is Overflow.DISCONNECT:
            self._drop(client, Event.OVERRUN)
        return not any(one is frames for one, _ in lost)

    def _release(self, client: Client) -> None:
        while not client.blocked and (frames := self.next_for(client)) is not None:
            self.out.append((client, frames))

    def _pass(self, client: Client, frames: Frames, letter: Letter | None) -> None:
        self.out.append((client, self._counted(client, frames, letter)))

    def _counted(self, client: Client, frames: Frames, letter: Letter | None) -> Frames:
        if client.credit is not None:
            client.credit -= 1
        if letter is not None:
            self._handed_over(client, letter)
        return frames

    def block(self, client: Client, frames: Frames) -> None:
        """The socket of the client did not take these; until :meth:`unblock`, nothing for it comes to :attr:`out`."""
        client.blocked = True
        client.replies.put(frames, _octets(frames))

    def next_for(self, client: Client) -> Frames | None:
        """Take what waits longest for a client whose socket may take more; None = nothing that may go now."""
        if len(client.replies):
            return client.replies.get()
        if len(client.queue) and client.credit != 0:
            return self._counted(client, *client.queue.get())
        return None

    def put_back(self, client: Client, frames: Frames) -> None:
        """The socket did not take what :meth:`next_for` gave."""
        client.replies.put_back(frames, _octets(frames))

    def unblock(self, client: Client) -> None:
        """The socket took all that :meth:`next_for` gave."""
        client.blocked = False
        self._release(client)

    # --- replies -------------------------------------------------------------------------------------------------

    def _fail(self, client: Client, reason: bytes) -> None:
        self._reply(client, _error(StatusCode.FAILED, reason))

    def _answer_repeat(self, client: Client, now: float) -> bool:
        if now - client.repeats_since >= 1.0:
            client.repeats, client.repeats_since = 0, now
        client.repeats += 1
        if client.repeats > self.settings.repeats:
            self.counters["repeats"] += 1
            return False
        return True

    def _reply(self, client: Client, frames: Frames) -> None:
        if client.slots:
            client.slots.append(Slot(frames))
        else:
            self._emit(client, frames)

    def _advance(self, client: Client) -> None:
        while client.slots and client.slots[0].frames is not None:
            self._emit(client, client.slots.popleft().frames or [])

    def _emit(self, client: Client, frames: Frames) -> None:
        if client.blocked:
            client.replies.put(frames, _octets(frames))
            if client.replies.size > self.settings.queue:  # asks and asks and does not read the answers
                self._drop(client, Event.OVERRUN)
        else:
            self.out.append((client, frames))

    def _event(self, kind: str, client: Client, stream: bytes = b"", detail: bytes = b"") -> None:
        self.events.append((kind, client.address, stream, detail))


def _octets(frames: Frames) -> int:
    """What frames cost in a queue; a small one is not free."""
    return sum(map(len, frames)) + 32


def _error(code: StatusCode, reason: bytes) -> Frames:
    return wire.encode(wire.Error(code, reason.replace(b"\0", b"?")[:255]))


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

"""Mailboxes and services: letters that go to one receiver each, and what their senders hear of them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command, StatusCode
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.malamute.protocol.patterns import BadPattern, Pattern

from .clients import ClientSession, SessionSettings
from .delivery_scheduler import OK
from .log_query_server import LogQueryServer, ReadableStreams
from .mailbox_store import MailboxMessage, MailboxStore, Services


class MailboxServer(LogQueryServer):
    """The part of :class:`~mama_spark.services.malamute_broker.session.state_machine.ServerMachine` that has to do with
    letters."""

    def __init__(self, settings: SessionSettings, shelf: ReadableStreams | None = None) -> None:
        super().__init__(settings, shelf)
        self.addresses: dict[bytes, ClientSession] = {}  #: of connected clients
        self.mailboxes = MailboxStore(settings.mailboxes)
        self.requests = MailboxStore(settings.services)
        self.services = Services()
        self._deadlines: list[tuple[float, int, MailboxMessage]] = []
        self._tidy_at = 1024
        self._sweep = 0.0  # letters are not looked at before
        self._numbers = count()

    def _mailbox_send(self, client: ClientSession, command: commands.MailboxSend, now: float) -> None:
        letter = self._letter(client, command, now, service=False)
        receiver = self.addresses.get(letter.address)
        if receiver is not None:
            self._hand_over(receiver, [letter])
        else:
            self._keep(self.mailboxes, letter)

    def _service_send(self, client: ClientSession, command: commands.ServiceSend, now: float) -> None:
        self._request(self._letter(client, command, now, service=True))

    def _request(self, letter: MailboxMessage) -> None:
        worker = self.services.choose(letter.address, letter.subject)
        if isinstance(worker, ClientSession):
            self._hand_over(worker, [letter])
        else:
            self._keep(self.requests, letter)

    def _letter(
        self, client: ClientSession, command: commands.MailboxSend | commands.ServiceSend, now: float, service: bool
    ) -> MailboxMessage:
        deadline = now + command.timeout / 1000 if command.timeout else 0.0
        return MailboxMessage(
            service, client, client.address, command.address, command.subject, command.tracker, deadline,
            command.content,
        )  # fmt: skip

    def _keep(self, store: MailboxStore, letter: MailboxMessage) -> None:
        lost = store.put(letter)
        for one in lost:
            self.counters["lost_letters"] += 1
            self._tell(one, StatusCode.FAILED, b"no room")
        if letter.kept:
            self._remember_deadline(letter)

    def _remember_deadline(self, letter: MailboxMessage) -> None:
        if not letter.deadline:
            return
        if len(self._deadlines) >= self._tidy_at:  # letters that were taken must not stay until their deadline
            self._deadlines = [entry for entry in self._deadlines if entry[2].kept]
            heapq.heapify(self._deadlines)
            self._tidy_at = max(1024, 2 * len(self._deadlines))
        heapq.heappush(self._deadlines, (letter.deadline, next(self._numbers), letter))

    def _discard(self, now: float) -> None:
        """Letters that are too old; the more wait the more seldom, since each time may take a pass over all."""
        due: tuple[list[MailboxMessage], list[MailboxMessage]] = [], []
        while self._deadlines and self._deadlines[0][0] <= now:
            letter = heapq.heappop(self._deadlines)[2]
            due[letter.service].append(letter)
            self._sweep = now + 1e-6 * (len(self.mailboxes) + len(self.requests))
        for letter in (*self.mailboxes.discard(due[False]), *self.requests.discard(due[True])):
            self._tell(letter, StatusCode.FAILED, b"timeout")

    def _offer(self, client: ClientSession, command: commands.ServiceOffer, now: float) -> None:
        key = (command.address, command.pattern)
        if key in client.offers:
            if self._answer_repeat(client, now):
                self._reply(client, OK)
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
        self._reply(client, OK)
        self._hand_over(client, self.requests.take(command.address, pattern))

    def _hand_over(self, receiver: ClientSession, letters: Iterable[MailboxMessage]) -> None:
        for letter in letters:
            if not receiver.alive:
                self._return(letter)
                continue
            cls = commands.ServiceDeliver if letter.service else commands.MailboxDeliver
            frames = commands.encode(cls(letter.source, letter.address, letter.subject, letter.tracker, letter.content))
            if not self._deliver(receiver, frames, letter):
                self.counters["lost_letters"] += 1
                self._tell(letter, StatusCode.FAILED, b"no room")

    def _return(self, letter: MailboxMessage) -> None:
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

    def _handed_over(self, receiver: ClientSession, letter: MailboxMessage) -> None:
        if letter.tracker and Feature.CONFIRM in receiver.features:
            for forgotten in receiver.unconfirmed.put(letter, letter.cost):
                self._tell(forgotten, StatusCode.FAILED, b"not confirmed")
        else:
            self._tell(letter, StatusCode.SUCCESS, b"")

    def _confirm(self, client: ClientSession, command: commands.Confirm, now: float) -> None:
        letter = next((one for one in client.unconfirmed if one.tracker == command.tracker), None)
        if letter is not None:
            client.unconfirmed.remove({id(letter)})
            self._tell(letter, command.code, command.reason)

    def _confirm_unasked(self, client: ClientSession, command: Command, now: float) -> None:
        self._fail(client, b"")

    def _tell(self, letter: MailboxMessage, code: int, reason: bytes) -> None:
        """Its sender learns what became of a letter, if it asked."""
        sender = letter.sender
        if letter.tracker and isinstance(sender, ClientSession) and sender.alive and Feature.CONFIRM in sender.features:
            self._emit(sender, commands.encode(commands.Confirm(letter.tracker, code, reason)))

"""Mail and requests for services (ML-23, ML-24) that wait, are delivered, come back or expire. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import count

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.patterns import BadPattern, Pattern

from .clients import OK, ClientSession, Connections
from .deliveries import ClientDeliveries
from .queues import MailboxMessage, MailboxStore


@dataclass(frozen=True, slots=True)
class _Offer:
    client: Hashable
    pattern: Pattern


class Services:
    """Offers of services, and which worker gets the next request."""

    def __init__(self) -> None:
        self._offers: dict[bytes, list[_Offer]] = {}

    def offer(self, client: Hashable, service: bytes, pattern: Pattern) -> None:
        """The client must not have made the offer before."""
        self._offers.setdefault(service, []).append(_Offer(client, pattern))

    def choose(self, service: bytes, subject: bytes) -> Hashable | None:
        """The client of the first offer that matches, which moves to the end (round robin); None if there is none."""
        offers = self._offers.get(service, [])
        for i, offer in enumerate(offers):
            if offer.pattern.search(subject):
                offers.append(offers.pop(i))
                return offer.client
        return None

    def withdraw(self, client: Hashable) -> None:
        for service, offers in list(self._offers.items()):
            offers[:] = [o for o in offers if o.client is not client]
            if not offers:
                del self._offers[service]


class Mailboxes:
    """Waiting messages: ``mailboxes`` by the address of their owner, ``requests`` by service."""

    def __init__(self, clients: Connections, deliveries: ClientDeliveries) -> None:
        self.mailboxes = MailboxStore(clients.settings.mailboxes)
        self.requests = MailboxStore(clients.settings.services)
        self.services = Services()
        self._clients = clients
        self._deliveries = deliveries
        self._deadlines: list[tuple[float, int, MailboxMessage]] = []
        self._compact_at = 1024
        self._next_pass = 0.0
        self._numbers = count()

    def send(self, client: ClientSession, command: commands.MailboxSend | commands.ServiceSend) -> None:
        client.has_sent = True
        message = MailboxMessage(
            isinstance(command, commands.ServiceSend),
            client,
            client.address,
            command.address,
            command.subject,
            command.tracker,
            self._clients.now + command.timeout / 1000 if command.timeout else 0.0,
            command.content,
        )
        receiver = self._receiver(message)
        if receiver is not None:
            self._deliver(receiver, [message])
        else:
            self._keep(message)

    def offer(self, client: ClientSession, command: commands.ServiceOffer) -> None:
        key = (command.address, command.pattern)
        if key in client.offers:
            if self._clients.answers_repeat(client):
                self._clients.reply(client, OK)
            return
        if len(client.offers) >= self._clients.settings.patterns:
            self._clients.fail(client, b"too many offers")
            return
        try:
            pattern = Pattern(command.pattern)
        except BadPattern as e:
            self._clients.fail(client, str(e).encode())
            return
        client.offers.add(key)
        self.services.offer(client, command.address, pattern)
        self._clients.reply(client, OK)
        self._deliver(client, self.requests.take(command.address, pattern))

    def connected(self, client: ClientSession) -> None:
        if client.address:
            self._deliver(client, self.mailboxes.take(client.address))

    def expire(self, now: float) -> None:
        """A pass may visit all messages, so the interval between passes grows with their number."""
        if not self._deadlines or now < self._next_pass:
            return
        due: tuple[list[MailboxMessage], list[MailboxMessage]] = [], []
        while self._deadlines and self._deadlines[0][0] <= now:
            message = heapq.heappop(self._deadlines)[2]
            due[message.service].append(message)
            self._next_pass = now + 1e-6 * (len(self.mailboxes) + len(self.requests))
        for message in (*self.mailboxes.discard(due[False]), *self.requests.discard(due[True])):
            self._deliveries.report(message, StatusCode.FAILED, b"timeout")

    def next_expiry(self) -> float | None:
        return max(self._deadlines[0][0], self._next_pass) if self._deadlines else None

    def _receiver(self, message: MailboxMessage) -> ClientSession | None:
        if not message.service:
            return self._clients.by_address.get(message.address)
        worker = self.services.choose(message.address, message.subject)
        return worker if isinstance(worker, ClientSession) else None

    def _keep(self, message: MailboxMessage) -> None:
        for lost in (self.requests if message.service else self.mailboxes).put(message):
            self._lost(lost)
        if message.kept:
            self._schedule_expiry(message)

    def _lost(self, message: MailboxMessage) -> None:
        self._clients.counters.lost_letters += 1
        self._deliveries.report(message, StatusCode.FAILED, b"no room")

    def _schedule_expiry(self, message: MailboxMessage) -> None:
        if not message.deadline:
            return
        if len(self._deadlines) >= self._compact_at:  # removes entries of delivered messages before their deadline
            self._deadlines = [entry for entry in self._deadlines if entry[2].kept]
            heapq.heapify(self._deadlines)
            self._compact_at = max(1024, 2 * len(self._deadlines))
        heapq.heappush(self._deadlines, (message.deadline, next(self._numbers), message))

    def _deliver(self, receiver: ClientSession, messages: Iterable[MailboxMessage]) -> None:
        for message in messages:
            if not receiver.connected:  # dropped meanwhile, because its queue is full
                self.give_back(message)
            elif not self._deliveries.deliver(receiver, _delivery_frames(message), message):
                self._lost(message)

    def give_back(self, message: MailboxMessage) -> None:
        """Requeue what a receiver that left has not confirmed, newest first, for its address or for other workers."""
        receiver = self._receiver(message)
        if receiver is not None:
            self._deliver(receiver, [message])
        elif message.service:
            self._keep(message)
        else:
            self.mailboxes.put_back(message)
            self._schedule_expiry(message)


def _delivery_frames(message: MailboxMessage) -> list[bytes]:
    cls = commands.ServiceDeliver if message.service else commands.MailboxDeliver
    return commands.encode(cls(message.source, message.address, message.subject, message.tracker, message.content))

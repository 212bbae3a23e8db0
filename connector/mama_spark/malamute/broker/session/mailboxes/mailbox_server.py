"""The MLP commands of mailboxes and services (ML-23, ML-24). Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.patterns import BadPattern, Pattern

from ..client_output import OK, ClientOutput
from ..client_session import ClientSession
from ..client_table import ClientTable
from ..counters import SessionCounters
from ..delivery_scheduler import DeliveryScheduler
from ..repeat_limiter import RepeatLimiter
from ..settings import SessionSettings
from .mailbox_receipts import MailboxReceipts
from .mailbox_store import MailboxMessage, MailboxStore, Services


class MailboxServer:
    """:ivar mailboxes: messages that wait for the owner of their address
    :ivar requests: messages that wait for a client that offers their service
    """

    def __init__(
        self,
        settings: SessionSettings,
        clients: ClientTable,
        output: ClientOutput,
        deliveries: DeliveryScheduler,
        receipts: MailboxReceipts,
        repeats: RepeatLimiter,
        counters: SessionCounters,
    ) -> None:
        self.mailboxes = MailboxStore(settings.mailboxes)
        self.requests = MailboxStore(settings.services)
        self.services = Services()
        self._most_offers = settings.patterns
        self._clients = clients
        self._output = output
        self._deliveries = deliveries
        self._receipts = receipts
        self._repeats = repeats
        self._counters = counters
        self._deadlines: list[tuple[float, int, MailboxMessage]] = []  # a heap
        self._compact_at = 1024
        self._next_pass = 0.0  # time of the next pass over expired messages
        self._numbers = count()

    # --- commands ------------------------------------------------------------------------------------------------

    def mailbox_send(self, client: ClientSession, command: commands.MailboxSend, now: float) -> None:
        client.has_sent = True
        self._to_mailbox(_message(client, command, now, service=False))

    def service_send(self, client: ClientSession, command: commands.ServiceSend, now: float) -> None:
        client.has_sent = True
        self._to_service(_message(client, command, now, service=True))

    def offer(self, client: ClientSession, command: commands.ServiceOffer, now: float) -> None:
        key = (command.address, command.pattern)
        if key in client.offers:
            if self._repeats.allows(client, now):
                self._output.reply(client, OK)
            return
        if len(client.offers) >= self._most_offers:
            self._output.fail(client, b"too many offers")
            return
        try:
            pattern = Pattern(command.pattern)
        except BadPattern as e:
            self._output.fail(client, str(e).encode())
            return
        client.offers.add(key)
        self.services.offer(client, command.address, pattern)
        self._output.reply(client, OK)
        self._deliver(client, self.requests.take(command.address, pattern))

    def confirm(self, client: ClientSession, command: commands.Confirm, now: float) -> None:
        self._receipts.confirmed(client, command)

    # --- connecting and leaving clients --------------------------------------------------------------------------

    def connected(self, client: ClientSession) -> None:
        """Deliver the messages queued for the address of a new client."""
        if client.address:
            self._deliver(client, self.mailboxes.take(client.address))

    def withdraw_offers(self, client: ClientSession) -> None:
        self.services.withdraw(client)

    def return_messages(self, messages: Iterable[MailboxMessage]) -> None:
        """Requeue unconfirmed messages of a receiver that left: for other clients that offer the service, or for the
        next client with the address.

        :param messages: newest first
        """
        for message in messages:
            self._return(message)

    # --- expiry --------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Discard messages whose deadline has passed. A pass may visit all messages, so the interval between passes
        grows with their number."""
        if not self._deadlines or now < self._next_pass:
            return
        due: tuple[list[MailboxMessage], list[MailboxMessage]] = [], []
        while self._deadlines and self._deadlines[0][0] <= now:
            message = heapq.heappop(self._deadlines)[2]
            due[message.service].append(message)
            self._next_pass = now + 1e-6 * (len(self.mailboxes) + len(self.requests))
        for message in (*self.mailboxes.discard(due[False]), *self.requests.discard(due[True])):
            self._receipts.report(message, StatusCode.FAILED, b"timeout")

    def next_expiry(self) -> float | None:
        return max(self._deadlines[0][0], self._next_pass) if self._deadlines else None

    # --- messages ------------------------------------------------------------------------------------------------

    def _to_mailbox(self, message: MailboxMessage) -> None:
        receiver = self._clients.by_address.get(message.address)
        if receiver is not None:
            self._deliver(receiver, [message])
        else:
            self._keep(self.mailboxes, message)

    def _to_service(self, message: MailboxMessage) -> None:
        worker = self.services.choose(message.address, message.subject)
        if isinstance(worker, ClientSession):
            self._deliver(worker, [message])
        else:
            self._keep(self.requests, message)

    def _keep(self, store: MailboxStore, message: MailboxMessage) -> None:
        for lost in store.put(message):
            self._lost(lost)
        if message.kept:
            self._schedule_expiry(message)

    def _lost(self, message: MailboxMessage) -> None:
        self._counters.lost_letters += 1
        self._receipts.report(message, StatusCode.FAILED, b"no room")

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
                self._return(message)
            elif not self._deliveries.deliver(receiver, _delivery_frames(message), message):
                self._lost(message)

    def _return(self, message: MailboxMessage) -> None:
        if message.service:
            self._to_service(message)
            return
        owner = self._clients.by_address.get(message.address)
        if owner is not None:
            self._deliver(owner, [message])
        else:
            self.mailboxes.put_back(message)
            self._schedule_expiry(message)


def _message(
    client: ClientSession, command: commands.MailboxSend | commands.ServiceSend, now: float, service: bool
) -> MailboxMessage:
    deadline = now + command.timeout / 1000 if command.timeout else 0.0
    return MailboxMessage(
        service, client, client.address, command.address, command.subject, command.tracker, deadline, command.content
    )


def _delivery_frames(message: MailboxMessage) -> list[bytes]:
    cls = commands.ServiceDeliver if message.service else commands.MailboxDeliver
    return commands.encode(cls(message.source, message.address, message.subject, message.tracker, message.content))

"""The engine whose stream lives in NATS JetStream: Malamute clients on a distributed engine.

What is published goes to JetStream, and what is delivered comes from there, so brokers that use one JetStream stream
hear each other, and it may be replicated. :mod:`.names` says how messages stand there.

*Publishing.* A batch is sent without waiting for the one before. SYNC is answered when the server has acknowledged all
that the client sent, with the server's sequences; during an outage that is later, never something else. Then messages
wait in memory, up to a limit; beyond it they are refused, which is true: they were not sent.

*Reading.* Readers that take everything at once share one tail of the stream. One that asked for older messages or has
no credit is behind, and has a tail of its own until it has caught up.

*Its own messages* never come back to a client: this engine knows its clients; of other brokers' messages it compares
the address of the sender with the one under which a reader has published here.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.errors import ConfigError, Unavailable
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome

from .. import BadPattern, Delivery, StreamEngine
from ..ack_tracker import MOST_CLIENTS, OutcomeRuns
from ..subscription_cursor import SubscriptionCursor
from ..subscription_index import SubscriptionIndex
from .async_publisher import AsyncPublisher, PendingPublish
from .names import JetStreamMessage
from .ordered_consumer import ConsumedMessage, JetStreamReader, OrderedConsumer
from .settings import JetStreamSettings

log = logging.getLogger(__name__)

#: Octets without an answer beyond which a batch waits for some, so that the broker holds the senders.
AHEAD = 8 * 1024 * 1024
#: Seconds that a command waits at most for what was sent before it, and SYNC for deliveries behind its answers.
BARRIER = 2.0
#: Readers that catch up at the same time, each with a consumer and a few megabytes.
CATCHING_UP = 16
#: Seconds after which a reader without credit gives its tail to others.
IDLE_TAIL = 5.0
#: Seconds between looks: while answers are to come, while messages come, while nothing does.
SOON, OFTEN, SELDOM = 0.002, 0.002, 0.01
LIVELY = 1.0  #: seconds after a message in which more is expected
#: Seconds of trouble after which the stream is looked at, and that its end waits for what was accepted.
LOOK = 5.0
ENDING = 10.0


class _Account:
    """What became of one client's messages since its last SYNC."""

    __slots__ = ("runs", "posts")

    def __init__(self) -> None:
        self.runs = OutcomeRuns()
        self.posts: deque[PendingPublish] = deque()

    def settle(self) -> bool:
        """Move what is decided; True if all is."""
        posts = self.posts
        while posts and (outcome := posts[0].outcome) is not None:
            self.runs.add(outcome, posts.popleft().sequence)
        return not posts


class JetStreamEngine(StreamEngine):
    """:param settings: see
    :class:`~mama_spark.services.malamute_broker.engines.jetstream.settings.JetStreamSettings`"""

    stored = True

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._options = JetStreamSettings.parse(name, self.settings)
        self._id = secrets.token_hex(8)
        self._place: JetStreamReader | None = None
        self._sender: AsyncPublisher | None = None
        self._selectors: SubscriptionIndex[SubscriptionCursor] = SubscriptionIndex()
        self._readers: dict[Hashable, SubscriptionCursor] = {}
        self._addresses: dict[SubscriptionCursor, bytes] = {}
        self._tail: OrderedConsumer | None = None  # of the readers that are live
        self._position = 0  # all up to here was handed to them
        self._newest = 0  # the last message that was
        self._behind: dict[SubscriptionCursor, _CatchUp | None] = {}  # those that are not live, whose turn it is first
        self._accounts: dict[Hashable, _Account] = {}
        self._own: dict[int, PendingPublish] = {}  # sent, and not yet come back
        self._number = 0
        self._heard = 0.0
        self._looked = 0.0

    def __repr__(self) -> str:
        state = "not open" if self._sender is None else repr(self._sender)
        return f"<JetStreamEngine {self.name!r}, {state}, {len(self._readers)} readers, {len(self._behind)} behind>"

    @property
    def sender(self) -> AsyncPublisher:
        assert self._sender is not None, "the engine was not started"
        return self._sender

    @property
    def place(self) -> JetStreamReader:
        assert self._place is not None, "the engine was not started"
        return self._place

    def start(self) -> None:
        """:raises ConfigError: there is no such stream and none can be made, or it cannot be used
        :raises Unavailable: no server answers
        """
        name, prefix = self._options.names(self.name)
        connection = NatsSettings(**self._options.connection, name="mama-broker")
        self._place = JetStreamReader(connection, name, prefix)
        last = self._place.open(self._options)
        settings = NatsSettings(
            **self._options.connection,
            name="mama-broker",
            stream=name,
            ack_mode="message",
            retry_deadline=self._place.window,
        )
        self._sender = AsyncPublisher(settings, self._id, prefix, self._place.window, self._options.buffer)
        self._sender.open()
        self._sender.last = last

    def close(self) -> None:
        """Waits for what was accepted, unless it waits for the end of an outage."""
        if self._sender is not None:
            end = time.monotonic() + ENDING
            with suppress(Unavailable):
                while self._sender.busy and not self._sender.down and time.monotonic() < end:
                    self._sender.pump(SOON)
            if self._sender.busy:
                log.error("stream %r ends before NATS has acknowledged all that was accepted", self.name)
            self._sender.close()
        for pursuit in self._behind.values():
            if pursuit is not None:
                pursuit.tail.close()
        if self._tail is not None:
            self._tail.close()
        if self._place is not None:
            self._place.close()

    @classmethod
    def unreadable(cls, name: bytes, settings: Mapping[str, Any]) -> str | None:
        """By number, it is read where it is."""
        try:
            stored, _ = JetStreamSettings.parse(name, settings).names(name)
        except ConfigError as e:
            return str(e)
        return f"it lives in NATS JetStream: read it there, with a url nats://host:port and stream {stored!r}"

    # --- subscriptions -------------------------------------------------------------------------------------------

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        reader = self._readers.get(client) or SubscriptionCursor(client, origin=secrets.randbits(62) + 1)
        if pattern in reader.patterns:
            return
        self._barrier()  # what came before is for those who subscribed before
        if self._tail is None:
            self._begin()
        if after is not None and after > self._position:
            self._approach(after)
        try:
            self._selectors.add(pattern, reader)
        except BadPattern:
            self._rest()
            raise
        self._readers[client] = reader
        before = reader.cursor
        reader.subscribe(pattern, after, self._position)
        if not reader.live and (reader not in self._behind or reader.cursor < before):
            self._give_up(reader)
            self._behind[reader] = None

    def position(self) -> int:
        return self._position

    def _begin(self) -> None:
        """The first reader: from the end of the stream on, or from what is known of it during an outage."""
        last = None if self.sender.down else self.place.last()
        self._position = self.sender.last if last is None else last
        self._newest = 0
        self._tail = OrderedConsumer(self.place, self._position, "the tail")

    def _approach(self, after: int) -> None:
        """A reader comes from where the stream is further than we have seen, unless the stream ends before that."""
        last = None if self.sender.down else self.place.last()
        if last is not None:
            self._wait(lambda: self._position >= min(after, last))

    def cancel(self, client: Hashable) -> None:
        self._barrier()  # what came before is this client's still, if it matches
        reader = self._readers.pop(client, None)
        if reader is None:
            return
        self._selectors.remove(reader, reader.patterns)
        self._addresses.pop(reader, None)
        self._give_up(reader)
        self._rest()

    def _give_up(self, reader: SubscriptionCursor) -> None:
        """It is not behind, or from another place on."""
        pursuit = self._behind.pop(reader, None)
        if pursuit is not None:
            pursuit.tail.close()

    def _rest(self) -> None:
        """Without readers, nothing is followed."""
        if not self._readers and self._tail is not None:
            self._tail.close()
            self._tail = None
            self._own.clear()

    def credit(self, client: Hashable, amount: int | None) -> None:
        reader = self._readers.get(client)
        if reader is not None:
            reader.give(amount)

    def _barrier(self) -> None:
        """Wait for what was accepted: acknowledged, and handed to the readers. Not for an outage, and not for long."""
        self._wait(lambda: not self.sender.busy and self._caught_up())

    def _caught_up(self) -> bool:
        """Everything that was acknowledged to us has come back, as far as anybody reads."""
        return self._tail is None or not self._own

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + BARRIER
        while not done() and not self.sender.trouble and time.monotonic() < end:
            if not self._work(SOON):
                time.sleep(SOON / 4)

    # --- publishing ----------------------------------------------------------------------------------------------

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        self._number += 1
        reader = self._readers.get(client)
        if reader is not None:
            self._addresses[reader] = address
        post = PendingPublish(self._number, client, 0 if reader is None else reader.origin, address, subject, content)
        if extension is not None:
            post.message_id, post.headers = extension.message_id, extension.headers
            self._account(client).posts.append(post)
        self.sender.put(post)
        if self._readers and post.outcome is None:
            self._own[post.number] = post

    def _account(self, client: Hashable) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= MOST_CLIENTS:
                del self._accounts[next(iter(self._accounts))]
            account = self._accounts[client] = _Account()
        elif len(account.posts) % 1024 == 0:
            account.settle()
        return account

    def sync(self, client: Hashable) -> tuple[AckRun, ...] | Callable[[], tuple[AckRun, ...] | None]:
        account = self._accounts.pop(client, None) or _Account()
        number, until = self._number, time.monotonic() + BARRIER

        def outcome() -> tuple[AckRun, ...] | None:
            if not account.settle():
                return None
            waits = self._waits_for(number) and not self.sender.trouble and time.monotonic() < until
            return None if waits else account.runs.acks()

        return outcome

    def _waits_for(self, number: int) -> bool:
        """Some messages up to this number have not come back to the readers, or are not acknowledged."""
        first = next(iter(self._own), None)
        return first is not None and first <= number

    def flush(self) -> None:
        """Send; wait only when much is on the way although nothing is wrong."""
        sender = self.sender
        sender.pump(0.0)
        while sender.waiting > AHEAD and not sender.trouble:
            sender.pump(SOON)

    def idle(self) -> float | None:
        came = self._work(SOON)
        sender = self.sender
        now = time.monotonic()
        if sender.trouble and not sender.down and now - max(sender.trouble, self._looked) > LOOK:
            self._looked = now
            self.place.last()  # raises if the stream is gone
        if came:
            return 0.0
        if sender.busy:
            return SOON if sender.trouble else 0.0
        if not self._readers:
            return None
        return OFTEN if now - self._heard < LIVELY else SELDOM

    # --- delivery ------------------------------------------------------------------------------------------------

    def _work(self, timeout: float) -> bool:
        """One round of everything; True if messages came."""
        self.sender.pump(timeout)
        came = self._follow()
        self._forget()
        came = self._pursue() or came
        if came:
            self._heard = time.monotonic()
        return came

    def _follow(self) -> bool:
        """To the readers that are live."""
        if self._tail is None:
            return False
        items = self._tail.take()
        for item in items:
            self._position = self._newest = item.sequence
            if item.letter is not None:
                self._hand_out(item, item.letter)
        return bool(items)

    def _hand_out(self, item: ConsumedMessage, letter: JetStreamMessage) -> None:
        origin, sender = letter.origin, letter.sender
        ours = origin is not None and origin.engine == self._id
        post = self._own.pop(origin.number, None) if ours and origin is not None else None
        receivers = self._selectors.receivers(letter.subject)
        if not receivers:
            return
        content: Sequence[bytes] = letter.content if post is None else post.content
        extension = _extension(item, letter)
        for reader in receivers:
            if not reader.live or self._is_own(reader, letter):
                continue
            if reader.credit is not None:
                if not reader.credit:
                    reader.fall_behind(item.sequence - 1)
                    self._behind[reader] = None
                    continue
                reader.credit -= 1
            self._deliver(Delivery(reader.client, sender, letter.subject, content, extension))

    def _is_own(self, reader: SubscriptionCursor, letter: JetStreamMessage) -> bool:
        """The reader itself sent it, as far as the record says who did."""
        if letter.origin is not None and letter.origin.engine == self._id:
            return letter.origin.client == reader.origin
        return bool(letter.sender) and self._addresses.get(reader) == letter.sender

    def _forget(self) -> None:
        """Messages that will not come back: refused, stored before, or removed before they were read."""
        while self._own:
            number, post = next(iter(self._own.items()))
            if post.outcome is None or (post.outcome is StoreOutcome.STORED and post.sequence > self._position):
                return
            del self._own[number]

    def _pursue(self) -> bool:
        """To those who are behind, by turns."""
        came = False
        now = time.monotonic()
        open_tails = sum(pursuit is not None for pursuit in self._behind.values())
        for reader, pursuit in list(self._behind.items()):
            if pursuit is None:
                if not reader.hungry or open_tails >= CATCHING_UP:
                    continue
                pursuit = self._behind[reader] = _CatchUp(OrderedConsumer(self.place, reader.cursor, "a reader"), now)
                open_tails += 1
            came = self._turn(reader, pursuit, now) or came
            if reader.live or (not reader.hungry and now - pursuit.used > IDLE_TAIL):
                self._give_up(reader)
                if not reader.live:
                    self._behind[reader] = None
        return came

    def _turn(self, reader: SubscriptionCursor, pursuit: _CatchUp, now: float) -> bool:
        if not reader.hungry:
            return False
        pursuit.used = now
        if not pursuit.items:
            pursuit.items.extend(pursuit.tail.take())
        items, came = pursuit.items, False
        while items and items[0].sequence <= self._position and reader.credit != 0:
            item = items.popleft()
            self._offer(reader, item)
            reader.cursor = item.sequence
            came = True
        if reader.cursor >= self._position or (not items and pursuit.tail.drained and self._newest <= reader.cursor):
            reader.live = True
        return came

    def _offer(self, reader: SubscriptionCursor, item: ConsumedMessage) -> None:
        letter = item.letter
        if letter is None or self._is_own(reader, letter):
            return
        if not reader.wants(item.sequence, self._selectors.matching(letter.subject)):
            return
        if reader.credit is not None:
            reader.credit -= 1
        self.deliver(Delivery(reader.client, letter.sender, letter.subject, letter.content, _extension(item, letter)))


class _CatchUp:
    """How a reader catches up.

    :ivar items: taken and not yet offered
    :ivar used: monotonic time when the reader last took something
    """

    __slots__ = ("items", "tail", "used")

    def __init__(self, tail: OrderedConsumer, now: float) -> None:
        self.tail, self.used = tail, now
        self.items: deque[ConsumedMessage] = deque()


def _extension(item: ConsumedMessage, letter: JetStreamMessage) -> Extension:
    return Extension(sequence=item.sequence, time=item.time, message_id=letter.message_id, headers=letter.headers)

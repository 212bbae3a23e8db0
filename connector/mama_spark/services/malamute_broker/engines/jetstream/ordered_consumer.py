"""What comes out of a JetStream stream: its place at the server, and tails that follow it.

A tail is polled and never waits: consumers are made and looked after on the loop of the connections, and whatever goes
wrong with one (a lost connection, a server that is gone, a gap in its numbers, silence) ends it, and another one begins
behind the last message that was handed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from nats.aio.msg import Msg
from nats.nuid import NUID

from mama_spark.bridges.nats.connection.connection import Connection
from mama_spark.bridges.nats.jetstream.api import NO_STREAM, PREFIX, ApiError, ask
from mama_spark.bridges.nats.protocol.parser import ProtocolError
from mama_spark.bridges.nats.protocol.records import DeliveryBuffer, columns, read_reply
from mama_spark.bridges.nats.read.logs import NatsLogs
from mama_spark.bridges.nats.read.pull_subscription import BYTES, ROWS, PullSubscription, SubscriptionBroken
from mama_spark.bridges.nats.read.range_reader import KEPT, OURS
from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.bridges.nats.subjects import covers
from mama_spark.errors import ConfigError, MamaError, Unavailable

from .names import JetStreamMessage, Unreadable, decode
from .settings import JetStreamSettings

log = logging.getLogger(__name__)

TRY = 3.0  #: seconds that one question may take
SILENCE = 2.0  #: seconds after which a consumer is asked how it is
PAUSES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
_MANY = 1_000_000  #: messages that a request asks for: more than fit into its octets
T = TypeVar("T")


class JetStreamReader:
    """One JetStream stream.

    :param timeout: seconds in which the server must answer when it is opened
    """

    def __init__(self, connection: NatsSettings, name: str, prefix: str, timeout: float = 10.0) -> None:
        self.logs = NatsLogs(connection, timeout)
        self.name, self.prefix = name, prefix
        self.identity = ""
        self.window = 0.0  #: seconds in which the server recognises an id

    def open(self, settings: JetStreamSettings) -> int:
        """Find the stream, or make it; its last sequence.

        :raises ConfigError: there is none, or it cannot be used
        :raises Unavailable: nobody answers
        """
        self.logs.open()
        info = self._find(settings)
        config = info["config"]
        wanted = f"{self.prefix}.>"
        if not any(covers(subject, wanted) for subject in config.get("subjects") or ()):
            raise ConfigError(f"the JetStream stream {self.name!r} does not take {wanted!r}")
        if config.get("retention", "limits") == "workqueue" or config.get("no_ack"):
            raise ConfigError(f"the JetStream stream {self.name!r} is a work queue or does not acknowledge")
        self.identity = str(info["created"])
        self.window = int(config.get("duplicate_window") or 0) / 1e9
        return int(info["state"]["last_seq"])

    def _find(self, settings: JetStreamSettings) -> dict[str, Any]:
        try:
            return self.logs.api.ask(f"STREAM.INFO.{self.name}")
        except ApiError as e:
            if e.code != NO_STREAM or not settings.create:
                raise ConfigError(f"the JetStream stream {self.name!r}: {e}") from e
        try:
            return self.logs.api.ask(f"STREAM.CREATE.{self.name}", settings.configuration(self.name, self.prefix))
        except ApiError as e:
            with contextlib.suppress(ApiError):  # another broker was first
                return self.logs.api.ask(f"STREAM.INFO.{self.name}")
            raise ConfigError(f"the JetStream stream {self.name!r} cannot be made: {e}") from e

    def last(self) -> int | None:
        """Its last sequence; None if nobody says so now.

        :raises ConfigError: it is gone, or another one by now
        """
        try:
            return int(self.same(self.logs.api.ask(f"STREAM.INFO.{self.name}", timeout=TRY))["state"]["last_seq"])
        except ApiError as e:
            raise ConfigError(f"the JetStream stream {self.name!r}: {e}") from e
        except Unavailable:
            return None

    def same(self, info: dict[str, Any]) -> dict[str, Any]:
        """:raises ConfigError: this is not the stream that was opened"""
        if str(info["created"]) != self.identity:
            raise ConfigError(f"the JetStream stream {self.name!r} was deleted and made again")
        return info

    def submit(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run it on the connections' loop, over the one that is there now.

        :raises BackgroundTaskFailed: there is none any more
        """
        connection = self.logs.connection()
        if not connection.loop.alive:
            connection.loop.soon(_nothing)  # says why
        return asyncio.run_coroutine_threadsafe(work(connection), connection.loop.loop)

    def close(self) -> None:
        self.logs.close()


def _nothing() -> None: ...


async def _ask(connection: Connection, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return await ask(connection, what, b"" if body is None else orjson.dumps(body), TRY, TRY)


class ConsumedMessage(NamedTuple):
    """:ivar time: microseconds since the epoch
    :ivar letter: None = Malamute cannot carry it
    """

    sequence: int
    time: int
    letter: JetStreamMessage | None


class _Following(PullSubscription):
    """A feed without an end, for a reader that does not wait."""

    _nudged = False  #: the loop was asked to hand over

    def poll(self) -> DeliveryBuffer | None:
        """What came; see :meth:`next`. A few may come a moment later, in company."""
        with self._ready:
            if not self._full and self._broken is None:
                nudge = not self._nudged and bool(self._parser.gather)
                self._nudged = self._nudged or nudge
                if nudge:
                    self._connection.loop.soon(self._hand_over)
                return None
        return self.next(0)

    def _hand_over(self) -> None:
        self._nudged = False
        super()._hand_over()

    def _look(self) -> None:
        gather = self._parser.gather
        caught_up = gather.tails[-1].split(b".")[3] == b"0"
        if caught_up or gather.size > BYTES or len(gather) >= ROWS:
            self._hand_over()

    async def _on_message(self, msg: Msg) -> None:
        """By public calls. The client keeps one value a header, which is what our own messages have."""
        place = read_reply(msg.reply.encode()) if msg.reply else None
        if place is None:
            await super()._on_message(msg)
            return
        block = None
        if msg.headers is not None:
            text = "".join(f"{name}: {value}\r\n" for name, value in msg.headers.items())
            block = f"NATS/1.0\r\n{text}\r\n".encode()
        self._parser.gather.add(msg.subject.encode(), place.tail, msg.data, block)
        self._look()


class _Opened(NamedTuple):
    consumer: str
    feed: _Following
    pending: int
    first: int


class OrderedConsumer:
    """Messages behind a position, as they come. One thread uses it.

    :ivar position: of the last message that was handed out
    :ivar drained: at one moment after this tail began, nothing was behind the position
    """

    def __init__(self, place: JetStreamReader, after: int, label: str) -> None:
        self.position, self.drained = after, False
        self._place, self._label = place, label
        self._opening: Future[_Opened] | None = None
        self._opened: _Opened | None = None
        self._asking: Future[dict[str, Any]] | None = None
        self._expected = 1
        self._tries = 0
        self._again_at = 0.0
        self._heard = 0.0  # when something last came
        self._asked = 0.0

    def __repr__(self) -> str:
        state = "open" if self._opened else "opening" if self._opening else "closed"
        return f"<OrderedConsumer {self._label} at {self.position}, {state}>"

    def take(self) -> list[ConsumedMessage]:
        """What came; nothing if nothing did.

        :raises ConfigError: the stream is gone, or cannot be read
        """
        now = time.monotonic()
        if self._opened is None and not self._open(now):
            return []
        assert self._opened is not None
        try:
            gather = self._opened.feed.poll()
            if gather is None:
                self._watch(now)
                return []
            taken = columns(gather, headers=False)
        except (SubscriptionBroken, ProtocolError) as e:
            self._fail(e)
            return []
        if taken.first != self._expected:
            self._fail(SubscriptionBroken(f"delivery {taken.first} where {self._expected} was to come"))
            return []
        self._expected += len(gather)
        self._heard, self._tries = now, 0
        records = taken.records
        self.position = int(records.sequences[-1])
        self.drained = taken.pending == 0
        cut = len(self._place.prefix) + 1
        blocks = gather.blocks or [None] * len(gather)
        parts = zip(gather.subjects, gather.payloads, blocks, strict=True)
        letters = [self._read(subject[cut:], bytes(payload), block) for subject, payload, block in parts]
        return [
            ConsumedMessage(*one)
            for one in zip(records.sequences.tolist(), records.times.tolist(), letters, strict=True)
        ]

    def _read(self, subject: bytes, payload: bytes, block: bytes | None) -> JetStreamMessage | None:
        try:
            return decode(subject, payload, block)
        except Unreadable as e:
            log.warning("a message of stream %r is left out: %s", self._place.name, e)
            return None

    # --- consumers -----------------------------------------------------------------------------------------------

    def _open(self, now: float) -> bool:
        if self._opening is None:
            if now >= self._again_at:
                self._opening = self._place.submit(partial(self._make, self.position, 1 if not self._tries else 0))
            return False
        if not self._opening.done():
            return False
        opening, self._opening = self._opening, None
        try:
            self._opened = opening.result()
        except ApiError as e:
            raise ConfigError(f"the JetStream stream {self._place.name!r} cannot be read: {e}") from e
        except (Unavailable, ProtocolError) as e:
            self._fail(e)
            return False
        self._expected, self._heard, self._asked = 1, now, now
        self.drained = self._opened.pending == 0
        if 0 < self.position < self._opened.first - 1:
            log.warning(
                "%s: messages %d to %d of stream %r are gone before they were read",
                *(self._label, self.position + 1, self._opened.first - 1, self._place.name),
            )
        return True

    async def _make(self, after: int, replicas: int, connection: Connection) -> _Opened:
        place = self._place
        state = place.same(await _ask(connection, f"STREAM.INFO.{place.name}"))["state"]
        consumer = f"{OURS}{NUID().next().decode()}"
        config = {
            "name": consumer,
            "ack_policy": "none",
            "num_replicas": replicas,
            "mem_storage": True,
            "inactive_threshold": int(KEPT * 1e9),
            "filter_subjects": [f"{place.prefix}.>"],
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
        }
        body = {"stream_name": place.name, "config": config}
        made = await _ask(connection, f"CONSUMER.CREATE.{place.name}.{consumer}", body)
        feed = _Following(connection, place.name, consumer, after, after + _MANY)
        place.logs.feeds.add(feed)
        await feed.start()
        return _Opened(consumer, feed, int(made["num_pending"]), int(state["first_seq"]))

    def _watch(self, now: float) -> None:
        """Nothing came for a while: is the consumer still there?"""
        assert self._opened is not None
        if self._asking is None:
            if now - max(self._heard, self._asked) > SILENCE:
                question = f"CONSUMER.INFO.{self._place.name}.{self._opened.consumer}"
                self._asking = self._place.submit(lambda connection: _ask(connection, question))
            return
        if not self._asking.done():
            return
        asking, self._asking = self._asking, None
        self._asked = now
        try:
            info = asking.result()
        except (MamaError, ProtocolError) as e:  # deleted, or the server that kept it is gone
            self._fail(e)
            return
        lost = int(info["delivered"]["consumer_seq"]) >= self._expected and now - self._heard > 2 * SILENCE
        if lost or not int(info["num_waiting"]):
            self._fail(SubscriptionBroken("the consumer waits for nothing, or what it sent did not come"))

    def _fail(self, error: Exception) -> None:
        log.info("%s of stream %r begins again behind %d: %s", self._label, self._place.name, self.position, error)
        self._drop()
        self.drained = False
        self._again_at = time.monotonic() + PAUSES[min(self._tries, len(PAUSES) - 1)]
        self._tries += 1

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if opened is not None:
            _forget(self._place, opened)

    def close(self) -> None:
        """Never raises."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(partial(_forget_opened, self._place))
        self._drop()


def _forget_opened(place: JetStreamReader, opening: Future[_Opened]) -> None:
    if opening.exception() is None:
        _forget(place, opening.result())


def _forget(place: JetStreamReader, opened: _Opened) -> None:
    """Without waiting; should it fail, the server does it by itself after a while."""

    async def end() -> None:
        await opened.feed.stop()
        with contextlib.suppress(Exception):
            await opened.feed._connection.ask(f"{PREFIX}CONSUMER.DELETE.{place.name}.{opened.consumer}", b"", TRY)

    place.logs.feeds.discard(opened.feed)
    with contextlib.suppress(MamaError):
        loop = opened.feed._connection.loop
        loop.soon(lambda: loop.loop.create_task(end()))

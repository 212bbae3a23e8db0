"""Reading a range of a stream: one consumer after another until the range is read.

The server is believed about the end in two ways only: a record at or behind it was delivered, or a consumer that was
just made says that nothing is pending for it. Whatever else happens (a gap in the consumer's own numbers, silence, a
lost connection, a consumer that somebody deleted, a server that restarted), another consumer is made behind the last
record that was handed on; so nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import contextlib
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nats.nuid import NUID

from mama_spark.errors import ConfigError, MamaError, Unavailable
from mama_spark.record_log import Records

from ..connection.connection import Connection
from ..jetstream.api import NO_CONSUMER, NO_MESSAGE, NO_STREAM, Api, ApiError
from ..protocol.parser import ProtocolError
from ..protocol.records import DeliveryBuffer, OutOfOrder, columns, until
from .pull_subscription import UNKNOWN, PullSubscription, SubscriptionBroken

OURS = "mama-"  #: what the names of our consumers begin with
KEPT = 30.0  #: seconds without a request after which the server deletes a consumer of ours, if the stream allows
_SILENCE = 0.5  #: seconds after which the consumer is asked how it is
_ON_THE_WAY = 2.0  #: seconds that what was sent may take to come; doubled each time that it did not
_TRY = 3.0  #: seconds that a new consumer may take; doubled each time that it did not come
_PAUSES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """What is to be read: ``after < sequence <= up_to`` on ``filters`` (none = all) of ``stream``.

    :ivar kept: seconds without a request after which the server may delete a consumer of ours
    """

    stream: str
    after: int
    up_to: int
    filters: list[str]
    headers: bool = True
    payloads: bool = True
    kept: float = KEPT


class RangeReader:
    """Reads one range.

    :param same: raises when the stream is not the one that the range is of
    :param feeds: those that are open, for who hears of the connection
    """

    def __init__(
        self,
        api: Api,
        connection: Callable[[], Connection],
        what: SequenceRange,
        same: Callable[[], None],
        feeds: set[PullSubscription],
    ) -> None:
        self._api, self._connection, self._what, self._same, self._feeds = api, connection, what, same, feeds
        self._position = what.after
        self._alive = time.monotonic()  # when something last came
        self._timeout = _ON_THE_WAY

    def __iter__(self) -> Iterator[Records]:
        tries = 0
        while self._position < self._what.up_to:
            self._timeout = _ON_THE_WAY * 2**tries
            before = self._position
            try:
                consumer = self._create()
                if consumer is None:
                    return
                yield from self._consume(consumer)
            except (SubscriptionBroken, ProtocolError) as e:
                tries = 0 if self._position > before else tries + 1
                if time.monotonic() - self._alive > self._api.timeout:
                    raise Unavailable(
                        f"nothing comes from stream {self._what.stream!r} for {self._api.timeout:g} s: {e}"
                    ) from e
                time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                self._same()

    def _create(self) -> str | None:
        """Make a consumer; its name, None if nothing is pending for it."""
        what = self._what
        config: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": self._position + 1}
        if not what.payloads:
            config["headers_only"] = True
        if what.filters:
            config["filter_subjects"] = what.filters
        consumer, info = make(self._api, what.stream, config, what.kept)
        if int(info["num_pending"]):
            return consumer
        self._delete(self._connection(), consumer)
        return None

    def _delete(self, connection: Connection, consumer: str) -> None:
        """Without waiting; should it fail, the server does it by itself after a while."""

        async def delete() -> None:
            with contextlib.suppress(Exception):
                await connection.ask(f"$JS.API.CONSUMER.DELETE.{self._what.stream}.{consumer}", b"", 5)

        with contextlib.suppress(MamaError):
            connection.loop.soon(lambda: connection.loop.loop.create_task(delete()))

    def _consume(self, consumer: str) -> Iterator[Records]:
        connection = self._connection()
        feed = PullSubscription(connection, self._what.stream, consumer, self._position, self._what.up_to)
        self._feeds.add(feed)
        try:
            connection.loop.run(feed.start(), self._api.timeout, "subscribing")
            yield from self._take(feed, consumer)
        finally:
            self._feeds.discard(feed)
            with contextlib.suppress(MamaError):
                connection.loop.soon(lambda: connection.loop.loop.create_task(feed.stop()))
            self._delete(connection, consumer)

    def _take(self, feed: PullSubscription, consumer: str) -> Iterator[Records]:
        expected = 1
        while self._position < self._what.up_to:
            gather = feed.next(_SILENCE)
            if gather is None:
                self._ask_how_it_is(consumer, expected)
                continue
            if UNKNOWN in gather.blocks and self._what.headers:
                self._ask_for_blocks(gather)
            taken = columns(gather, self._what.headers)
            if taken.first != expected:
                raise OutOfOrder(f"delivery {taken.first} where {expected} was to come")
            expected += len(gather)
            records = until(taken.records, self._what.up_to)
            self._position = int(taken.records.sequences[-1])
            if len(records):
                yield records
            self._alive = time.monotonic()
            if taken.pending == 0:  # believed only of a new consumer
                return

    def _ask_how_it_is(self, consumer: str, expected: int) -> None:
        """:raises Broken: it is gone, or has nothing more for us, or has sent what did not come"""
        try:
            limit = min(_TRY, self._api.timeout)
            info = self._api.ask(f"CONSUMER.INFO.{self._what.stream}.{consumer}", timeout=limit)
        except Unavailable as e:  # the one server that keeps it, or all of them: the next question tells
            raise SubscriptionBroken(str(e)) from e
        except ApiError as e:
            if e.code != NO_CONSUMER:
                raise
            raise SubscriptionBroken(f"the consumer is gone: {e}") from e
        sent, silent = int(info["delivered"]["consumer_seq"]), time.monotonic() - self._alive
        if sent >= expected:
            if silent > self._timeout:
                raise SubscriptionBroken(f"{sent} were sent, {expected - 1} came")
        elif not int(info["num_waiting"]) or not int(info["num_pending"]):
            raise SubscriptionBroken("the consumer waits for nothing")
        if silent > self._api.timeout:
            raise SubscriptionBroken("the consumer has records and sends none")

    def _ask_for_blocks(self, gather: DeliveryBuffer) -> None:
        """Header blocks one by one, as they are stored: the client's own headers have one value a name."""
        for i, block in enumerate(gather.blocks):
            if block == UNKNOWN:
                sequence = int(gather.tails[i].partition(b".")[0])
                try:
                    answer = self._api.ask(f"STREAM.MSG.GET.{self._what.stream}", {"seq": sequence})
                except ApiError as e:
                    if e.code != NO_MESSAGE:
                        raise
                    raise SubscriptionBroken(f"record {sequence} was deleted while it was read") from e
                gather.blocks[i] = b64decode(answer["message"].get("hdrs", ""))


def make(api: Api, stream: str, where: dict[str, Any], kept: float) -> tuple[str, dict[str, Any]]:
    """Make a consumer that acknowledges nothing; its name and info.

    One server alone keeps it, which is cheap. A cluster may choose one that is gone, and keep to that for this name: so
    each try has a name of its own, and from the second on as many servers as the stream has.

    :param where: the part of the configuration that says what it delivers
    :param kept: seconds that it may be idle
    :raises ConfigError: the server allows none
    :raises Unavailable: nobody answers
    """
    until, limit, replicas = time.monotonic() + api.timeout, _TRY, 1
    while True:
        name = f"{OURS}{NUID().next().decode()}"
        common = {"name": name, "ack_policy": "none", "num_replicas": replicas, "mem_storage": True}
        body = {"stream_name": stream, "config": {**common, "inactive_threshold": int(kept * 1e9), **where}}
        left = until - time.monotonic()
        try:
            return name, api.ask(f"CONSUMER.CREATE.{stream}.{name}", body, timeout=min(limit, max(left, _PAUSES[1])))
        except ApiError as e:
            raise refuse(stream, e) from e
        except Unavailable as e:
            if left <= limit:
                raise Unavailable(f"stream {stream!r} gives no consumer within {api.timeout:g} s: {e}") from e
        limit, replicas = 2 * limit, 0  # 0: as the stream


def refuse(stream: str, error: ApiError) -> ConfigError:
    """What to say when the server allows no consumer."""
    if error.code == NO_STREAM:
        return ConfigError(f"there is no stream {stream!r} any more")
    if error.code == 10084:
        return ConfigError(
            f"stream {stream!r} is a work queue: the server allows only consumers whose acknowledgements remove the "
            "records, so it cannot be read as a log"
        )
    return ConfigError(f"stream {stream!r} cannot be read: {error}")

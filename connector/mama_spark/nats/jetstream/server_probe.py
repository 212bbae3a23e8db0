"""Tells whether messages sent to a server over an earlier connection may still be stored.

They may stay in the buffers of that server as long as it stands still. So it is asked over a new connection: a live
server has read all earlier bytes, and a message that no stream stores
(:data:`~mama_spark.nats.jetstream.streams.NOBODY`) follows them to the leader of the stream, so its answer proves their
arrival. The question is repeated for :data:`~mama_spark.contracts.batch_ledger.SETTLE`, lest the server has stood still
meanwhile. A server that is gone, or was restarted, has no buffers.

No time limits the way of a message through such a server. The leader closes its routes after 60 to 90 s (two PINGs, 30
s apart; seen: 88 s), and messages that the server reads in the 10 to 70 ms before they are back are lost, so that after
a long stop mostly nothing is stored. But with PINGs a second apart, the last 5,031 of 12,850 messages were stored.
After shorter stops a change of leader may drop them: all of 12,850 were stored after 3 s, 385 after 8 s.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from mama_spark.contracts.batch_ledger import SETTLE
from mama_spark.contracts.errors import ConfigError, MamaError

from ..connection.socket_connection import SocketConnection, error_of
from ..connection.socket_driver import SILENT
from ..protocol.client_events import Cause
from ..protocol.parser import Frame
from ..protocol.server_pool import ServerPool
from ..settings import NatsSettings
from .client import JetStream
from .streams import NOBODY, StreamCache, stream_infos

_QUESTIONS = 5  #: to a server, until all has settled
_LATE = 0.5  #: seconds by which an answer may be slower than the first; a slower server has stood still


@dataclass(frozen=True, slots=True)
class SentTo:
    """A server that messages were sent to.

    :ivar id: id of its process
    :ivar own: its address is certainly its own: a refusal of a connection there comes from no other server
    :ivar alone: see :class:`.ServerInfo`
    """

    name: str
    id: str
    address: str
    own: bool
    alone: bool = False

    @classmethod
    def over(cls, connection: SocketConnection) -> Self:
        info, server = connection.info, connection.driver.servers.current
        named = {info.address, *info.connect_urls}
        own = bool(named & {server.address, connection.driver.peer})
        return cls(info.name, info.id, server.address, own, info.alone)

    @classmethod
    def of(cls, text: str) -> Self:
        """The server of a :attr:`text`. ConfigError: another text."""
        try:
            found: dict[str, Any] = orjson.loads(text)
            return cls(**found)
        except (ValueError, TypeError) as e:
            raise ConfigError(f"not a server as mama-spark notes it: {text[:100]!r}") from e

    @property
    def text(self) -> str:
        return orjson.dumps(self).decode()

    def __str__(self) -> str:
        return f"server {self.name!r} at {self.address}"


def why_unfenced(settings: NatsSettings, server: SentTo, topics: Mapping[str, str]) -> dict[str, str]:
    """Why messages sent to a server before now may still be stored, for people, by stream; settled streams are left
    out. Waits ``SETTLE`` seconds, and for answers.

    :param topics: by stream, one topic of each that was published to
    """
    why = _why_unfenced(settings, server, topics)
    return {name: f"{server} may still have messages: {why[topic]}" for name, topic in topics.items() if topic in why}


def _why_unfenced(settings: NatsSettings, server: SentTo, topics: Mapping[str, str]) -> dict[str, str]:
    pool, why = ServerPool(settings.servers, random.Random(), SILENT), "it does not answer"
    asked, waiting = {server.address}, deque([server.address])
    while waiting:
        target = pool.at(waiting.popleft())
        if target is None:
            continue
        connection = SocketConnection(settings, only=target)
        try:
            connection.open()
            if connection.info.name == server.name or _has_its_streams(connection, server, settings, topics):
                return _why_unsettled(connection, server, [*topics.values()], settings.connect_timeout)
            others = [address for address in connection.info.connect_urls if address not in asked]
            asked.update(others)
            waiting.extend(others)
            why = f"another one answers there ({connection.info.name!r})"
        except MamaError:
            lost = connection.driver.lost
            if lost is None or lost.cause is Cause.TIMEOUT:
                continue  # silent
            if lost.cause is not Cause.NOBODY:
                why = f"it cannot be asked: {error_of(lost)}"
            elif target.address == server.address:
                if server.own:  # the process is gone, with all that it had not handed on
                    time.sleep(SETTLE)
                    return {}
                why = "nothing listens there, which may be the word of a proxy or a load balancer"
        finally:
            connection.close()
    return dict.fromkeys(topics.values(), why)


def _has_its_streams(
    connection: SocketConnection, server: SentTo, settings: NatsSettings, streams: Collection[str]
) -> bool:
    """Whether another process has taken the place of an unnamed server, whose name changes with each start. Messages to
    a server that is :attr:`~.ServerInfo.alone` get into its own folder only. If another one that is alone leads the
    streams, it has that folder, and the first one has ended; or it has a folder without our markers, and nothing is
    sent there before they are changed."""
    if not (server.alone and connection.info.alone):
        return False
    api = JetStream(lambda: connection, settings.connect_timeout, settings.connect_timeout)
    try:
        infos = stream_infos(api, StreamCache(), [*streams])
    except MamaError:
        return False  # it answers, and its JetStream does not
    return all(info is not None and info.leader == connection.info.name for info in infos)


def _why_unsettled(
    connection: SocketConnection, server: SentTo, topics: Sequence[str], timeout: float
) -> dict[str, str]:
    if connection.info.id != server.id:  # it was started again
        time.sleep(SETTLE)
        return {}
    led = _answered(connection, topics, timeout)
    text = "it is there, and the leader of the stream does not answer through it"
    why = dict.fromkeys([topic for topic in topics if topic not in led], text)
    steady = not led or _answers_steadily(connection, led, timeout)
    return why if steady else why | dict.fromkeys(led, "it is there, and does not answer steadily")


def _answers_steadily(connection: SocketConnection, topics: Sequence[str], timeout: float) -> bool:
    lost, first = connection.loss(), math.inf
    for pause in (*[SETTLE / _QUESTIONS] * _QUESTIONS, 0.0):
        asked = time.monotonic()
        answered = _answered(connection, topics, timeout)
        took = time.monotonic() - asked
        if len(answered) < len(topics) or lost() or took > first + _LATE:
            return False
        first = min(first, took)
        connection.drive(pause, lost)
    return True


def _answered(connection: SocketConnection, topics: Sequence[str], timeout: float) -> list[str]:
    answers = connection.requests.request_all([(topic, b"", NOBODY) for topic in topics], timeout)
    return [topic for topic, answer in zip(topics, answers, strict=True) if isinstance(answer, Frame)]

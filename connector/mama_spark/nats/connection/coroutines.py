"""The requests of :mod:`..jetstream`, which are coroutines, over a connection that the calling thread drives.

They run on an event loop that lives as long as the call; between their steps the connection is driven.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import nats.errors

from mama_spark.contracts.errors import Unavailable

from ..protocol.parser import Frame
from .socket_connection import SocketConnection, is_nobody, new_inbox

T = TypeVar("T")

_STEP = 0.005  #: seconds for which the connection is waited for, while coroutines may wait for something else
_TURNS = 8  #: turns of the loop after which what an answer woke has asked the next question, or waits again


class _Version(NamedTuple):
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A message, as nats-py gives it."""

    subject: str
    data: bytes
    reply: str
    headers: dict[str, str] | None

    @classmethod
    def of(cls, frame: Frame) -> Reply:
        return cls(frame.subject.decode(), frame.payload, (frame.reply or b"").decode(), dict(frame.headers) or None)


class CoroutineConnection:
    """What coroutines call of a :class:`~.connection.Connection`, client and loop included.

    :ivar owned: it is not a client of the caller's
    """

    owned = True

    def __init__(self, connection: SocketConnection) -> None:
        self._connection = connection
        self.client = self.loop = self
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself does not keep them
        self._came = False  # an answer, since the connection was last driven
        self.cached, self.cache, self.new_inbox = connection.cached, connection.cache, new_inbox
        self.api_prefix = connection.api_prefix

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def alive(self) -> bool:
        """As of a loop."""
        return not self._connection.closed

    @property
    def connected_server_version(self) -> _Version:
        return _Version(*self._connection.info.version_numbers)

    def run(self, work: Coroutine[Any, Any, T], timeout: float, what: str) -> T:
        """Run a coroutine and wait for it.

        :raises Unavailable: it took longer than ``timeout``
        """
        running = self._run(work, timeout, what)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(running)
        with ThreadPoolExecutor(1) as pool:  # this thread runs a loop of the caller, which waits meanwhile
            return pool.submit(asyncio.run, running).result()

    async def _run(self, work: Coroutine[Any, Any, T], timeout: float, what: str) -> T:
        task, until = asyncio.ensure_future(work), time.monotonic() + timeout
        while not task.done():
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if time.monotonic() >= until:
                task.cancel()
                await asyncio.wait({task})
                raise Unavailable(f"{what} took longer than {timeout:g} s")
            if not task.done():
                self._came = False
                self._connection.drive(_STEP, lambda: self._came)
        return task.result()

    async def request(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> Reply | None:
        """See :meth:`.Connection.request`."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def answered(frame: Frame) -> None:
            self._came = True
            answer.set_result(frame)

        number = self._connection.ask(subject, payload, headers, answered)
        try:
            with self.denials(subject) as refused:
                either: set[asyncio.Future[Any]] = {answer, refused}
                await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if refused.done():
                    return None
        finally:
            self._connection.forget(number)
        if not answer.done():
            raise Unavailable(f"no answer to {subject}: timeout")
        if is_nobody(answer.result()):
            raise nats.errors.NoRespondersError
        return Reply.of(answer.result())

    @contextlib.contextmanager
    def denials(self, subject: str) -> Iterator[asyncio.Future[str]]:
        """See :meth:`.Connection.denials`."""
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            self._came = True
            if not refused.done():
                refused.set_result(subject)

        with self._connection.watch(subject, tell):
            yield refused

    async def publish(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """As of a client."""
        self._connection.publish(subject, payload, headers=headers)

    async def subscribe(
        self, subject: str, callback: Callable[[Reply], Awaitable[None]], timeout: float
    ) -> _Subscription | None:
        """See :meth:`.Connection.subscribe`."""
        loop = asyncio.get_running_loop()

        def call(frame: Frame) -> None:
            self._came = True
            task = loop.create_task(_awaited(callback(Reply.of(frame))))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        sid = self._connection.subscribe(subject, call, timeout)
        return None if sid is None else _Subscription(self._connection, sid)


async def _awaited(work: Awaitable[None]) -> None:
    await work


@dataclass(frozen=True, slots=True)
class _Subscription:
    connection: SocketConnection
    sid: int

    async def unsubscribe(self) -> None:
        self.connection.unsubscribe(self.sid)

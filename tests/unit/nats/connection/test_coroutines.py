"""Coroutines over a connection that the thread drives: it waits for the server, and for nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.nats.connection.coroutines import CoroutineConnection
from mama_spark.nats.jetstream.api import JetStreamClient
from mama_spark.nats.protocol.parser import Frame


class Server:
    """A connection to a server that answers what was asked when the connection is driven; None: never.

    :ivar drives: how often
    """

    cached = cache = closed = None
    api_prefix = "$JS.API."

    def __init__(self, answer: bytes | None) -> None:
        self.drives, self._answer, self._asked = 0, answer, deque[Callable[[Frame], None]]()

    def ask(self, subject: str, payload: bytes, headers: Any, answered: Callable[[Frame], None]) -> int:
        self._asked.append(answered)
        return 0

    def forget(self, number: int) -> None: ...

    @contextmanager
    def watch(self, subject: str, tell: Callable[[], None]) -> Iterator[None]:
        yield

    def drive(self, timeout: float, done: Callable[[], bool]) -> None:
        self.drives += 1
        if self._answer is not None and self._asked:
            self._asked.popleft()(Frame("MSG", 0, subject=b"a", payload=self._answer))


def run(server: Any, ask: Callable[[JetStreamClient], Any], timeout: float = 60.0) -> Any:
    connection: Any = CoroutineConnection(server)
    return connection.run(ask(JetStreamClient(connection, timeout)), timeout, "asking")


async def in_turn(client: JetStreamClient) -> list[Any]:
    return [await client.request("INFO") for _ in range(20)]


async def at_once(client: JetStreamClient) -> list[Any]:
    return list(await asyncio.gather(*(client.request("INFO") for _ in range(20))))


@pytest.mark.parametrize("ask", [in_turn, at_once])
def test_each_answer_is_waited_for_once(ask: Callable[[JetStreamClient], Any]) -> None:
    server = Server(b'{"x": 1}')
    assert run(server, ask) == [{"x": 1}] * 20
    assert server.drives == 20


def test_they_run_although_the_thread_runs_a_loop_of_the_caller() -> None:
    async def main() -> Any:
        return run(Server(b"{}"), in_turn)

    assert asyncio.run(main()) == [{}] * 20


def test_what_is_not_answered_ends() -> None:
    with pytest.raises(Unavailable, match=r"asking took longer than 0\.01 s"):
        run(Server(None), in_turn, 0.01)

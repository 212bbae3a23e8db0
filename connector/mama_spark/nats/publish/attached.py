"""Publishes over a live JetStream context of the caller, on the event loop of its nats-py client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Self

import nats.errors
import numpy as np
from nats.aio.client import Client

from mama_spark.contracts.bridge import PollResult
from mama_spark.contracts.errors import ClientClosed, ConfigError, MamaError
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import Int64s, MessageBatch

from ..connection.socket_connection import MAX_UNWRITTEN
from ..protocol.frames import TOKEN_WIDTH
from ..settings import NatsSettings, shown_server
from .answers import NatsAnswers
from .bridge import NatsBridge
from .client_connection import CallersClient, CallersLoop, Row
from .missing_acks import ANSWER_TIME
from .nats_py_errors import from_client
from .requests import NatsRequests

_CHUNK = 1024 * 1024  #: bytes of one call of ``send``


class AttachedBridge(NatsBridge):
    """Publishes by public calls of the client, which stays the caller's. Made by :meth:`attach`."""

    def __init__(self, settings: NatsSettings, context: Any, client: Client, loop: CallersLoop) -> None:
        super().__init__(settings)
        self._context, self._callers, self._loop = context, client, loop
        self._client: CallersClient | None = None

    @classmethod
    def attach(
        cls,
        js: Any,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        client: Client | None = None,
        dedup: bool = True,
        **options: Any,
    ) -> Self:
        """A bridge that is not open yet.

        :param js: ``nats.js.JetStreamContext``
        :param loop: the client's loop; None = that of this thread, which must be the client's
        :param client: the context's client, which nats-py's context does not show
        :raises ConfigError: there is no client, or no loop
        """
        settings = NatsSettings(dedup=dedup, ack_mode="message", **options)
        if client is None:
            raise ConfigError(
                "a JetStream context of nats-py does not show its client: give it as client=, or give the bridge of "
                "mama_spark.nats.attach(js, loop, client)"
            )
        try:
            loop = loop or asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError("no event loop runs on this thread: give the loop of the client as loop=") from None
        return cls(settings, js, client, CallersLoop(loop))

    @property
    def connected_to(self) -> str:
        if self._client is None:
            return "nothing"
        client = self._client.client
        return f"nats-server {client.connected_server_version} at {shown_server(client.connected_url)}"

    def _max_payload(self) -> int:
        known = 0 if self._client is None else self._client.client.max_payload
        return known or super()._max_payload()

    def open(self) -> None:
        connection = self._client = CallersClient(self._loop, self._callers)
        answers = NatsAnswers(connection, None, self._ack_queue, self._router, self._warn)
        connection.listener = self._answers = answers
        timeout = self.settings.connect_timeout
        if self._loop.here():
            self._loop.loop.create_task(self._start(connection, answers))
        else:
            self._loop.run(connection.start(timeout), timeout + 1, "subscribing")

    async def _start(self, connection: CallersClient, answers: NatsAnswers) -> None:
        try:
            await connection.start(self.settings.connect_timeout)
        except MamaError as e:
            answers.on_closed(str(e))

    def _capacity(self) -> int:
        connection = self._client
        if connection is None or connection.closed:
            raise ClientClosed("the bridge is not open")
        usable = connection.up or connection.client.is_connected  # it subscribes at this moment
        return min(MAX_UNWRITTEN - connection.unwritten, _CHUNK) if usable else 0

    def _write(self, part: MessageBatch, first_token: int, order: Int64s | None = None) -> None:
        connection, answers = self._client, self._answers
        assert connection is not None
        assert answers is not None
        token = answers.base + first_token
        connection.next_token = max(connection.next_token, token + len(part))
        rows = part if order is None else part.take(np.asarray(order))
        connection.publish(_client_rows(rows, connection.inbox.decode(), token))

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        return self._ack_queue.wait(timeout, want)

    def explain_missing_acks(self) -> str:
        connection = self._client
        if connection is None:
            return ""
        if not connection.up:
            return connection.why_down
        return self._router.explain_missing_acks(self._last_sequence, self._stream_of, self.connected_to)

    def _last_sequence(self, stream: str) -> int:
        return int(self._ask(self._context.stream_info(stream)).state.last_seq)

    def _stream_of(self, topic: str) -> list[str]:
        return [self._ask(self._context.find_stream_name_by_subject(topic))]

    def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run(work, ANSWER_TIME, "the request")
        except (TimeoutError, nats.errors.Error) as e:
            raise from_client(e) from e

    def requests(self) -> NatsRequests | None:
        """None: the caller has the client."""
        return None

    def close(self) -> None:
        connection, self._client = self._client, None
        if connection is None:
            return
        connection.listener = None
        with contextlib.suppress(MamaError):
            self._loop.soon(lambda: self._loop.loop.create_task(connection.release()))


class _Header(str):
    """Key of a further value of a header in the client's dictionary, which has one value a key. No public call of
    nats-py writes repeated headers otherwise; ``test_publish_msg_async`` publishes some over a live context."""

    _name: str

    def __new__(cls, name: str, k: int) -> _Header:
        made = super().__new__(cls, f"{name} {k}")
        made._name = name
        return made

    def strip(self, chars: str | None = None, /) -> str:
        """The name that the client writes."""
        return self._name


def _client_rows(part: MessageBatch, inbox: str, token: int) -> list[Row]:
    """Messages as arguments of nats-py's public ``publish``."""
    n = len(part)
    ids: list[Any] = [None] * n if part.ids is None else part.ids.to_pylist()
    pairs: list[Any] = [None] * n if part.headers is None else part.headers.to_pylist()
    rows: list[Row] = []
    for i, (topic, payload) in enumerate(zip(part.topics.to_pylist(), part.payloads.to_pylist(), strict=True)):
        headers: dict[str, str] = {MSG_ID: ids[i]} if ids[i] is not None else {}
        for name, values in pairs[i] or ():
            headers.update((_Header(name, k) if k else name, value) for k, value in enumerate(values or ()))
        to = f"{inbox}{token + i:0{TOKEN_WIDTH}d}"
        rows.append((token + i, topic, payload, to, headers or None))
    return rows

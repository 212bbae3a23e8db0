"""JetStream for threads other than that of the event loop: requests, and reading without a consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from mama_spark.contracts.errors import Unavailable

from ..connection.connection import Connection
from ..protocol.direct_get import StoredMessage
from . import direct
from .answers import StreamInfo
from .api import JetStreamClient
from .retry import BACKOFF

T = TypeVar("T")

_PAGE = 2000
_PAGE_BYTES = 8 * 1024 * 1024


class JetStream:
    """See :class:`~.api.JetStreamClient`.

    :param connection: returns the connection; another one when the last was closed
    :param timeout: seconds that a call may take, repetitions included
    :param attempt_timeout: seconds that one attempt may take
    """

    def __init__(
        self, connection: Callable[[], Connection], timeout: float, attempt_timeout: float | None = None
    ) -> None:
        self.connection, self.timeout, self._attempt_timeout = connection, timeout, attempt_timeout

    def run(self, work: Callable[[JetStreamClient], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run ``work`` on the event loop. Calls have their own time limits; the one here guards against defects.

        :param timeout: seconds of a call, instead of those of all calls
        """
        limit, connection = self.timeout if timeout is None else timeout, self.connection()
        client = JetStreamClient(connection, limit, self._attempt_timeout)
        return connection.loop.run(work(client), 20 * limit + 60, "asking JetStream")

    def request(self, call: str, body: dict[str, Any] | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """See :meth:`JetStreamClient.request`."""
        return self.run(lambda client: client.request(call, body), timeout)

    def find(self, call: str, body: dict[str, Any] | None, absent: int) -> dict[str, Any] | None:
        """See :meth:`JetStreamClient.find`."""
        return self.run(lambda client: client.find(call, body, absent))

    def stream(self, name: str, **details: bool) -> StreamInfo | None:
        """See :meth:`JetStreamClient.stream`."""
        return self.run(lambda client: client.stream(name, **details))

    def message(self, stream: str, **which: str | int) -> StoredMessage | None:
        """See :meth:`JetStreamClient.message`."""
        return self.run(lambda client: client.message(stream, **which))

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], timeout: float | None = None) -> int:
        """See :meth:`JetStreamClient.publish`."""
        return self.run(lambda client: client.publish(subject, payload, headers), timeout)

    # --- direct gets -----------------------------------------------------------------------------------------

    def serves_direct_gets(self, stream: str) -> bool:
        """See :func:`~.direct.is_served`."""
        return self.run(lambda client: direct.is_served(client, stream))

    def get(self, stream: str, timeout: float | None = None, **which: str | int) -> StoredMessage | None:
        """See :func:`~.direct.get`."""
        return self.run(lambda client: direct.get(client, stream, **which), timeout)

    def get_many(self, stream: str, **body: Any) -> tuple[list[StoredMessage], int]:
        """See :func:`~.direct.get_many`."""
        return self.run(lambda client: direct.get_many(client, stream, body))

    def first_and_last(self, stream: str) -> tuple[int, int]:
        """Sequences of the first and the last message; (0, 0) when there is none."""
        first = self.get(stream, seq=1, next_by_subj=">")
        last = self.get(stream, last_by_subj=">")
        return (0, 0) if first is None or last is None else (first.sequence, max(first.sequence, last.sequence))

    def pages(
        self, stream: str, after: int, subject: str, up_to: int | None = None, *, beyond: bool = False
    ) -> Iterator[list[StoredMessage]]:
        """Messages behind sequence ``after`` on ``subject`` (wildcards), to the end or ``up_to``, and perhaps beyond in
        the last page.

        With ``up_to`` it goes on until a message at or beyond it is seen, or the leader says that there is none: a
        replica may not have it yet.

        :param beyond: then read on to the end: records that were rewritten meanwhile have moved there
        """
        now = time.monotonic
        until, delays = now() + self.timeout, BACKOFF.delays()
        while True:
            messages, pending = self.get_many(
                stream, seq=after + 1, next_by_subj=subject, batch=_PAGE, max_bytes=_PAGE_BYTES
            )
            if messages:
                yield messages
                after, until = messages[-1].sequence, now() + self.timeout
                delays.reset()
            if up_to is not None and after >= up_to and not (beyond and pending):
                return
            if pending:
                continue
            if up_to is None or self._ends_before(stream, subject, up_to):
                return
            if now() > until:
                raise Unavailable(f"no replica of the stream {stream!r} has sequence {up_to} yet")
            time.sleep(delays.next())

    def _ends_before(self, stream: str, subject: str, up_to: int) -> bool:
        last = self.message(stream, last_by_subj=subject)
        return last is None or last.sequence < up_to

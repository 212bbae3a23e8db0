"""Requests to the JetStream API that are not waited for."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import orjson

from mama_spark.contracts.errors import MamaError, Unavailable

from .. import errors
from ..connection.requests import is_nobody
from ..connection.socket_connection import SocketConnection
from ..protocol.parser import Frame
from .client import read_answer


class Asked:
    """A request to the JetStream API that is not waited for."""

    def __init__(self, connection: SocketConnection, call: str, body: dict[str, Any] | None, timeout: float) -> None:
        """:raises Unavailable: not connected"""
        self._connection, self._subject = connection, f"{connection.api_prefix}{call}"
        self._until = time.monotonic() + timeout
        self._answers: list[Frame | None] = []
        self._lost = connection.loss()
        self._ends = contextlib.ExitStack()
        self._ends.enter_context(connection.denials.watch(self._subject, lambda: self._answers.append(None)))
        payload = b"" if body is None else orjson.dumps(body)
        try:
            number = connection.requests.ask(self._subject, payload, None, self._answers.append)
        except MamaError:
            self.close()
            raise
        self._ends.callback(connection.answers.forget, number)

    def answer(self) -> dict[str, Any] | None:
        """The answer; None: it has not come yet. Otherwise as :meth:`JetStream.request`, once."""
        self._connection.drive(0)
        if not self._answers and not self._lost() and time.monotonic() < self._until:
            return None
        self.close()
        if not self._answers:
            raise Unavailable(f"no answer to {self._subject}")
        reply = self._answers[0]
        nobody = reply is not None and is_nobody(reply)
        return read_answer(self._subject, errors.no_responders(self._subject) if nobody else reply, ())

    def close(self) -> None:
        """The answer is not wanted any more."""
        self._ends.close()

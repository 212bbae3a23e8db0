"""Messages as arguments of nats-py's public ``publish``, for connections without the fast path."""

from __future__ import annotations

from typing import Any

from mama_spark.contracts.message import MessageBatch

from ..connection.connection import Row
from ..protocol import headers as hd
from ..protocol.frames import TOKEN_WIDTH


class _Header(str):
    """Key of a header in the client's dictionary, which has one value a key: each value gets a key of its own."""

    _name: str

    def __new__(cls, name: str, k: int) -> _Header:
        made = super().__new__(cls, f"{name} {k}")
        made._name = name
        return made

    def strip(self, chars: str | None = None, /) -> str:
        """The name that the client writes."""
        return self._name


def client_rows(part: MessageBatch, inbox: str, token: int, reply: bool) -> list[Row]:
    """One tuple per message, for the public calls."""
    n = len(part)
    ids: list[Any] = [None] * n if part.ids is None else part.ids.to_pylist()
    pairs: list[Any] = [None] * n if part.headers is None else part.headers.to_pylist()
    rows: list[Row] = []
    for i, (topic, payload) in enumerate(zip(part.topics.to_pylist(), part.payloads.to_pylist(), strict=True)):
        headers: dict[str, str] = {hd.MSG_ID: ids[i]} if ids[i] is not None else {}
        for name, values in pairs[i] or ():
            headers.update((_Header(name, k), value) for k, value in enumerate(values or ()))
        to = f"{inbox}{token + i:0{TOKEN_WIDTH}d}" if reply else ""
        rows.append((token + i, topic, payload, to, headers or None))
    return rows

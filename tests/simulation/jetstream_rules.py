"""JetStream's rules: streams, what they take, what they remember of ids, and what the API answers (NATS ADR-1). Pure.

Requests and messages come in, answers go out; ``now`` is the server's time in seconds since the epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

#: Prefix of the subjects of requests.
API = "$JS.API."
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream."""

    sequence: int
    subject: str
    headers: Headers
    payload: bytes
    time: float


@dataclass(slots=True)
class Stream:
    """One stream of a single server.

    :ivar config: in the words of the API
    :ivar messages: by sequence
    :ivar ids: sequence and time of each id in the duplicate window, oldest first
    """

    config: dict[str, Any]
    created: float
    messages: dict[int, Stored] = field(default_factory=dict)
    last: int = 0
    ids: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    @property
    def name(self) -> str:
        return str(self.config["name"])

    def take(self, subject: str, headers: Headers, payload: bytes, now: float) -> bytes:
        """Store a message, or not: the acknowledgement."""
        expected = headers.get("Nats-Expected-Stream")
        if expected is not None and expected != self.name:
            return self._refusal(400, 10060, "expected stream does not match")
        id_ = headers.get("Nats-Msg-Id")
        if id_:
            self._forget_ids(now)
            if id_ in self.ids:
                return b'{"stream":"%b","seq":%d,"duplicate": true}' % (self.name.encode(), self.ids[id_][0])
        self.last += 1
        self.messages[self.last] = Stored(self.last, subject, headers, payload, now)
        if id_:
            self.ids[id_] = self.last, now
        return b'{"stream":"%b","seq":%d}' % (self.name.encode(), self.last)

    def _forget_ids(self, now: float) -> None:
        oldest = now - self.config["duplicate_window"] / 1e9
        while self.ids and next(iter(self.ids.values()))[1] <= oldest:
            self.ids.popitem(last=False)

    def _refusal(self, status: int, code: int, text: str) -> bytes:
        return orjson.dumps(
            {"error": {"code": status, "err_code": code, "description": text}, "stream": self.name, "seq": 0}
        )

    def info(self) -> dict[str, Any]:
        """The answer to ``STREAM.INFO``, without its type."""
        messages = self.messages
        first = next(iter(messages), self.last + 1 if self.last else 0)
        return {
            "config": self.config,
            "created": text_of(self.created),
            "state": {
                "messages": len(messages),
                "bytes": sum(len(m.subject) + len(m.payload) + 16 for m in messages.values()),
                "first_seq": first,
                "first_ts": text_of(messages[first].time) if first in messages else "0001-01-01T00:00:00Z",
                "last_seq": self.last,
                "last_ts": text_of(messages[self.last].time) if self.last in messages else "0001-01-01T00:00:00Z",
                "num_subjects": len({m.subject for m in messages.values()}),
                "num_deleted": self.last - first + 1 - len(messages) if messages else 0,
                "consumer_count": 0,
            },
        }


class JetStream:
    """The streams of one account.

    :ivar streams: by name
    """

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self._owners: dict[str, Stream | None] = {}  # by subject

    def create(self, name: str, subjects: list[str], now: float, **more: Any) -> Stream:
        """A new stream; ``more`` of its configuration, in the words of the API."""
        usual = {"retention": "limits", "storage": "file", "num_replicas": 1, "duplicate_window": 120_000_000_000}
        stream = self.streams[name] = Stream({"name": name, "subjects": subjects, **usual, **more}, now)
        self._owners.clear()
        return stream

    def owner(self, subject: str) -> Stream | None:
        """The stream that takes a subject."""
        if subject not in self._owners:
            self._owners[subject] = next((s for s in self.streams.values() if self._takes(s, subject)), None)
        return self._owners[subject]

    @staticmethod
    def _takes(stream: Stream, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in stream.config["subjects"])

    def request(self, subject: str, payload: bytes, now: float) -> bytes | None:
        """The answer to a request of the API; None: nobody answers."""
        call = subject.removeprefix(API)
        for begin, handle in _CALLS.items():
            if call == begin or (begin.endswith(".") and call.startswith(begin)):
                answer = handle(self, call.removeprefix(begin), orjson.loads(payload) if payload else {}, now)
                return orjson.dumps(answer)
        return None

    def _account(self, _: str, __: dict[str, Any], ___: float) -> dict[str, Any]:
        return {"type": "io.nats.jetstream.api.v1.account_info_response", "streams": len(self.streams)}

    def _names(self, _: str, body: dict[str, Any], __: float) -> dict[str, Any]:
        wanted = body.get("subject")
        names = sorted(n for n, s in self.streams.items() if wanted is None or self._takes(s, wanted))
        return {"total": len(names), "offset": 0, "limit": 1024, "streams": names}

    def _info(self, name: str, _: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self.streams.get(name)
        return error(404, 10059, "stream not found") if stream is None else {**stream.info(), "ts": text_of(now)}


_CALLS: Mapping[str, Callable[[JetStream, str, dict[str, Any], float], dict[str, Any]]] = {
    "INFO": JetStream._account,
    "STREAM.NAMES": JetStream._names,
    "STREAM.INFO.": JetStream._info,
}


def error(status: int, code: int, text: str) -> dict[str, Any]:
    """What the API answers to what it does not do."""
    return {"error": {"code": status, "err_code": code, "description": text}}


def text_of(time: float) -> str:
    """A time as the API tells it."""
    return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with ``*`` and ``>`` means."""
    if pattern == subject:
        return True
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)

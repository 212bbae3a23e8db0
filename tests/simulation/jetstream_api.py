"""The JetStream of one server: its streams, its pull consumers, and what the API answers (NATS ADR-1, 13, 15). Pure."""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from .jetstream_rules import API, Stored, Stream, error, matches, micros_of, text_of

_STATUS = "NATS/1.0 {}\r\n{}\r\n"


class Delivery(NamedTuple):
    """Something for whoever subscribes to ``to``; it shows the subject ``subject``."""

    to: str
    subject: str
    reply: bytes
    block: bytes
    payload: bytes


@dataclass(slots=True)
class Pull:
    """A request for messages: how many, and how many bytes, are left of it."""

    reply: str
    left: int
    size: int


@dataclass(slots=True)
class Consumer:
    """A pull consumer without acknowledgements.

    :ivar following: sequence of the stream that comes next; ``delivered``: how many messages it has sent
    :ivar first: of what there is, the messages that it begins with: the last of each subject; None: all
    """

    config: dict[str, Any]
    stream: Stream
    following: int
    delivered: int = 0
    pulls: deque[Pull] = field(default_factory=deque)
    first: frozenset[int] | None = None
    _behind: int = 0

    def __post_init__(self) -> None:
        if self.config["deliver_policy"] == "last_per_subject":
            self.first, self._behind = frozenset(self.stream.newest.values()), self.stream.last

    def _left(self) -> Iterator[Stored]:
        one = self.config.get("filter_subject")
        filters = self.config.get("filter_subjects") or ([one] if one else [])
        for sequence, message in self.stream.messages.items():
            first = self.first is None or sequence > self._behind or sequence in self.first
            if (
                first
                and sequence >= self.following
                and (not filters or any(matches(f, message.subject) for f in filters))
            ):
                yield message

    def deliver(self) -> list[Delivery]:
        """What its requests bring now."""
        if not self.pulls:
            return []
        out: list[Delivery] = []
        left = list(self._left())
        for n, message in enumerate(left):
            while self.pulls and self.pulls[0].size < message.size:
                pull = self.pulls.popleft()
                pending = f"Nats-Pending-Messages: {pull.left}\r\nNats-Pending-Bytes: {pull.size}\r\n"
                status = _STATUS.format("409 Message Size Exceeds MaxBytes", pending).encode()
                out.append(Delivery(pull.reply, pull.reply, b"", status, b""))
            if not self.pulls:
                break
            pull = self.pulls[0]
            pull.left, pull.size = pull.left - 1, pull.size - message.size
            if not pull.left:
                self.pulls.popleft()
            self.delivered += 1
            self.following = message.sequence + 1
            out.append(self._delivery(pull.reply, message, len(left) - n - 1))
        return out

    def _delivery(self, to: str, message: Stored, pending: int) -> Delivery:
        numbers = f"{message.sequence}.{self.delivered}.{micros_of(message.time) * 1000}.{pending}"
        reply = f"$JS.ACK.{self.stream.name}.{self.config['name']}.1.{numbers}"
        block, payload = message.block, message.payload
        if self.config.get("headers_only"):
            size = b"Nats-Msg-Size: %d\r\n\r\n" % len(payload)
            block, payload = (block[:-2] if block else b"NATS/1.0\r\n") + size, b""
        return Delivery(to, message.subject, reply.encode(), block, payload)

    def info(self) -> dict[str, Any]:
        """The answer to ``CONSUMER.INFO``."""
        return {
            "name": self.config["name"],
            "stream_name": self.stream.name,
            "config": self.config,
            "num_pending": sum(1 for _ in self._left()),
            "num_ack_pending": 0,
            "num_waiting": len(self.pulls),
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.following - 1},
        }


class JetStream:
    """The streams of one account, as one server has them.

    :ivar streams: by name
    :ivar consumers: by stream and name; they are in memory
    """

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self._owners: dict[str, Stream | None] = {}  # by subject

    def create(self, name: str, subjects: list[str], now: float, **more: Any) -> Stream:
        """A new stream; ``more`` of its configuration, in the words of the API."""
        usual = {"retention": "limits", "storage": "file", "num_replicas": 1, "duplicate_window": 120_000_000_000}
        stream = self.streams[name] = Stream({"name": name, "subjects": subjects, **usual, **more}, now)
        self._owners.clear()
        return stream

    def adopt(self, name: str, stream: Stream) -> None:
        """A stream that is there when the server starts."""
        self.streams[name] = stream
        self._owners.clear()

    def owner(self, subject: str) -> Stream | None:
        """The stream that takes a subject."""
        if subject not in self._owners:
            self._owners[subject] = next((s for s in self.streams.values() if self._takes(s, subject)), None)
        return self._owners[subject]

    @staticmethod
    def _takes(stream: Stream, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in stream.config["subjects"])

    def stored(self, stream: Stream) -> list[Delivery]:
        """What consumers send now that a message was stored."""
        if not self.consumers:
            return []
        return [d for (name, _), c in self.consumers.items() if name == stream.name for d in c.deliver()]

    def request(self, subject: str, reply: str, payload: bytes, now: float) -> list[Delivery]:
        """What a request of the API brings; nothing, where nobody answers."""
        call = subject.removeprefix(API)
        if call.startswith("CONSUMER.MSG.NEXT."):
            return self._pull(call.removeprefix("CONSUMER.MSG.NEXT."), reply, payload)
        for begin, handle in _CALLS.items():
            if call == begin or (begin.endswith(".") and call.startswith(begin)):
                answer = handle(self, call.removeprefix(begin), orjson.loads(payload) if payload else {}, now)
                return [Delivery(reply, reply, b"", b"", orjson.dumps(answer))]
        return []

    def _pull(self, called: str, reply: str, payload: bytes) -> list[Delivery]:
        stream, _, name = called.partition(".")
        consumer = self.consumers.get((stream, name))
        if consumer is None:
            return []
        body = orjson.loads(payload) if payload else {}
        consumer.pulls.append(Pull(reply, int(body.get("batch", 1)), int(body.get("max_bytes", 1 << 40))))
        return consumer.deliver()

    # --- calls -------------------------------------------------------------------------------------------------------

    def _account(self, _: str, __: dict[str, Any], ___: float) -> dict[str, Any]:
        return {"type": "io.nats.jetstream.api.v1.account_info_response", "streams": len(self.streams)}

    def _names(self, _: str, body: dict[str, Any], __: float) -> dict[str, Any]:
        wanted = body.get("subject")
        names = sorted(n for n, s in self.streams.items() if wanted is None or self._takes(s, wanted))
        return {"total": len(names), "offset": 0, "limit": 1024, "streams": names}

    def _list(self, _: str, __: dict[str, Any], ___: float) -> dict[str, Any]:
        streams = [stream.info() for _name, stream in sorted(self.streams.items())]
        return {"total": len(streams), "offset": 0, "limit": 256, "streams": streams}

    def _info(self, name: str, body: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self.streams.get(name)
        if stream is None:
            return _NO_STREAM
        return {**stream.info(deleted=bool(body.get("deleted_details"))), "ts": text_of(now)}

    def _create_stream(self, name: str, body: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self.streams.get(name)
        if stream is None:
            stream = self.create(**{"now": now, **body})
        elif any(stream.config.get(key) != value for key, value in body.items()):
            return error(400, 10058, "stream name already in use with a different configuration")
        return {**stream.info(), "ts": text_of(now)}

    def _message(self, name: str, body: dict[str, Any], _: float) -> dict[str, Any]:
        stream = self.streams.get(name)
        if stream is None:
            return _NO_STREAM
        found = stream.find(body)
        if found is None:
            return error(404, 10037, "no message found")
        message = {"subject": found.subject, "seq": found.sequence, "time": text_of(found.time)}
        if found.block:
            message["hdrs"] = b64encode(found.block).decode()
        return {"message": {**message, "data": b64encode(found.payload).decode()}}

    def _delete_message(self, name: str, body: dict[str, Any], _: float) -> dict[str, Any]:
        stream, sequence = self.streams.get(name), int(body["seq"])
        if stream is None:
            return _NO_STREAM
        if sequence not in stream.messages:
            return error(400, 10043, f"sequence {sequence} not found")
        stream.remove(sequence)
        return {"success": True}

    def _purge(self, name: str, body: dict[str, Any], _: float) -> dict[str, Any]:
        stream = self.streams.get(name)
        return _NO_STREAM if stream is None else {"success": True, "purged": stream.purge(int(body["seq"]))}

    def _create_consumer(self, called: str, body: dict[str, Any], _: float) -> dict[str, Any]:
        name, _dot, consumer = called.partition(".")
        stream = self.streams.get(name)
        if stream is None:
            return _NO_STREAM
        config = {**body["config"], "name": consumer}
        time = config.get("opt_start_time")
        begin = int(config.get("opt_start_seq", 1)) if time is None else stream.first_at(time)
        made = self.consumers[name, consumer] = Consumer(config, stream, begin)
        return made.info()

    def _consumer_info(self, called: str, _: dict[str, Any], __: float) -> dict[str, Any]:
        stream, _dot, name = called.partition(".")
        found = self.consumers.get((stream, name))
        return _NO_CONSUMER if found is None else found.info()

    def _delete_consumer(self, called: str, _: dict[str, Any], __: float) -> dict[str, Any]:
        stream, _dot, name = called.partition(".")
        found = self.consumers.pop((stream, name), None)
        return _NO_CONSUMER if found is None else {"success": True}


_NO_STREAM, _NO_CONSUMER = error(404, 10059, "stream not found"), error(404, 10014, "consumer not found")
_CALLS: Mapping[str, Callable[[JetStream, str, dict[str, Any], float], dict[str, Any]]] = {
    "INFO": JetStream._account,
    "STREAM.NAMES": JetStream._names,
    "STREAM.LIST": JetStream._list,
    "STREAM.INFO.": JetStream._info,
    "STREAM.CREATE.": JetStream._create_stream,
    "STREAM.MSG.GET.": JetStream._message,
    "STREAM.MSG.DELETE.": JetStream._delete_message,
    "STREAM.PURGE.": JetStream._purge,
    "CONSUMER.CREATE.": JetStream._create_consumer,
    "CONSUMER.INFO.": JetStream._consumer_info,
    "CONSUMER.DELETE.": JetStream._delete_consumer,
}

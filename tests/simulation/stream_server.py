"""A NATS server that speaks the client protocol: bytes come in and bytes go out, in no time. Pure.

What streams do is in :mod:`.jetstream_rules`; :class:`.sockets.ServerPort` moves the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from .jetstream_api import Delivery, JetStream
from .jetstream_rules import API, Headers, Stream, matches
from .nats.fast_batches import Answers, Part

#: Bytes for connections, by number; None closes one.
Outputs = list[tuple[int, bytes | None]]
_VERSION = "2.14.2"
_MAX_PAYLOAD = 1024 * 1024
_NOBODY = b"NATS/1.0 503\r\n\r\n"
_NO_HEADERS: Headers = MappingProxyType({})


@dataclass(slots=True)
class Session:
    """One connection of a client.

    :ivar rest: the beginning of a frame whose end has not come
    :ivar subscriptions: subjects by id
    :ivar fields: of CONNECT
    """

    number: int
    rest: bytes = b""
    subscriptions: dict[bytes, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


class StreamServer:
    """One server with JetStream.

    :param name: of the server and its host
    :param clock: its time of day, given the time of the run
    :param tell: called with what happens, for the trace
    :param life: how often it was started
    :ivar sessions: by number of the connection
    :ivar answers: what becomes of acknowledgements: ``lost``, ``every other`` of them lost, ``doubled`` or
        ``reordered``, or ``no refusals`` among them; None: they are sent
    """

    def __init__(
        self,
        name: str,
        jetstream: JetStream,
        clock: Callable[[float], float],
        tell: Callable[[str], None] | None = None,
        life: int = 0,
    ) -> None:
        self.name, self.jetstream, self.life = name, jetstream, life
        self._clock, self._tell = clock, tell
        self.sessions: dict[int, Session] = {}
        self._out: dict[int, list[bytes]] = {}
        self.answers: str | None = None
        self._kept: list[Delivery] = []
        self._lose = False

    # --- what the network calls --------------------------------------------------------------------------------------

    def opened(self, number: int, now: float) -> Outputs:
        """A connection has come about: the greeting."""
        self.sessions[number] = Session(number)
        return [(number, b"INFO %b\r\n" % orjson.dumps(self.info(number)))]

    def info(self, number: int) -> dict[str, Any]:
        """What it says of itself to a connection."""
        return {
            "server_id": f"ID{self.name}.{self.life}",
            "server_name": self.name,
            "version": _VERSION,
            "proto": 1,
            "host": self.name,
            "port": 4222,
            "headers": True,
            "jetstream": True,
            "max_payload": _MAX_PAYLOAD,
            "client_id": number,
        }

    def received(self, number: int, data: bytes, now: float) -> Outputs:
        """Bytes of a client, cut anywhere."""
        session = self.sessions[number]
        data, at = session.rest + data, 0
        try:
            for at in self._frames(session, data, now):  # noqa: B007 - where the last whole frame ends
                pass
        except ValueError as e:
            self._say(number, b"-ERR '%b'\r\n" % str(e).encode())
            return [*self._outputs(), (number, None)]
        session.rest = data[at:]
        while self._kept:
            self.deliver(self._kept.pop())
        return self._outputs()

    def closed(self, number: int, now: float) -> Outputs:
        """A connection has ended."""
        del self.sessions[number]
        return []

    def _outputs(self) -> Outputs:
        out: Outputs = [(number, b"".join(pieces)) for number, pieces in self._out.items()]
        self._out.clear()
        return out

    def _say(self, number: int, data: bytes) -> None:
        self._out.setdefault(number, []).append(data)

    # --- the client protocol -----------------------------------------------------------------------------------------

    def _frames(self, session: Session, data: bytes, now: float) -> Iterator[int]:
        """Handle whole frames; where each ends."""
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            op, _, rest = data[at:end].partition(b" ")
            begin, at = end + 2, end + 2
            if op in (b"PUB", b"HPUB"):
                words = rest.split()
                size = int(words[-1])
                at = begin + size + 2
                if len(data) < at:
                    return
                head = int(words[-2]) if op == b"HPUB" else 0
                reply = words[1] if len(words) == (4 if op == b"HPUB" else 3) else b""
                block, payload = data[begin : begin + head], data[begin + head : begin + size]
                self._published(session, words[0].decode(), reply, block, payload, now)
            else:
                self._control(session, op, rest)
            yield at

    def _control(self, session: Session, op: bytes, rest: bytes) -> None:
        match op:
            case b"CONNECT":
                session.fields = orjson.loads(rest)
            case b"PING":
                self._say(session.number, b"PONG\r\n")
            case b"PONG":
                pass
            case b"SUB":
                words = rest.split()
                session.subscriptions[words[-1]] = words[0].decode()
            case b"UNSUB":
                session.subscriptions.pop(rest.split()[0], None)
            case _:
                raise ValueError("Unknown Protocol Operation")

    def _published(
        self, session: Session, subject: str, reply: bytes, block: bytes, payload: bytes, now: float
    ) -> None:
        time, headers = self._clock(now), headers_of(block) if block else _NO_HEADERS
        if (trace := headers.get("Nats-Trace-Dest")) is not None:
            self.trace(trace, subject)
            return
        heard = self.deliver(Delivery(subject, subject, reply, block, payload))
        taken = self.handle(subject, reply.decode(), headers, block, payload, time)
        if reply and not heard and not taken:
            self.deliver(Delivery(reply.decode(), reply.decode(), b"", _NOBODY, b""))

    def trace(self, to: str, subject: str) -> None:
        """Say what would become of a message (NATS ADR-41): no mapping, no import."""
        events = {"events": [{"type": "in", "kind": 0, "subj": subject}]}
        self.deliver(Delivery(to, to, b"", b"", orjson.dumps(events)))

    def handle(self, subject: str, reply: str, headers: Headers, block: bytes, payload: bytes, time: float) -> bool:
        """Give it to JetStream; whether that takes it."""
        if subject.startswith(API):
            answers = self.jetstream.request(subject, reply, payload, time)
            taken = bool(answers) or subject.startswith(f"{API}CONSUMER.MSG.NEXT.")
        elif (stream := self.jetstream.owner(subject)) is not None:
            taken, found = True, self._take(stream, subject, reply, headers, block, payload, time)
            if self._tell is not None:
                self._tell(f"{subject} {payload[:40]!r}: {b' '.join(answer for _, answer in found).decode()}")
            acks = [Delivery(to, to, b"", b"", answer) for to, answer in found]
            answers = self._spoiled(acks) + self.jetstream.stored(stream)
        else:
            return False
        for one in answers:
            if one.to:
                self.deliver(one)
        return taken

    def _spoiled(self, acks: list[Delivery]) -> list[Delivery]:
        match self.answers:
            case "lost":
                return []
            case "every other":
                self._lose = not self._lose
                return [] if self._lose else acks
            case "no refusals":
                return [ack for ack in acks if b'"error"' not in ack.payload]
            case "doubled":
                return [*acks, *acks]
            case "reordered":
                self._kept += acks
                return []
        return acks

    @staticmethod
    def _take(
        stream: Stream, subject: str, reply: str, headers: Headers, block: bytes, payload: bytes, time: float
    ) -> Answers:
        part = Part.of(reply)
        if part is None:
            return [(reply, stream.take(subject, headers, payload, time, block))]
        answers, accepted = stream.fast.take(part, subject, headers, payload, time)
        if accepted:
            sequence = stream.store(subject, headers, payload, time, block)
            answers += stream.fast.stored(part, sequence, time, leads=True)
        return answers

    def hears(self, subject: str) -> bool:
        """Whether a client subscribes to a subject."""
        return any(matches(p, subject) for session in self.sessions.values() for p in session.subscriptions.values())

    def deliver(self, message: Delivery) -> bool:
        """To all that subscribe to the subject; whether anybody does."""
        heard = False
        for session in self.sessions.values():
            for sid, pattern in session.subscriptions.items():
                if matches(pattern, message.to):
                    heard = True
                    to = b" ".join(filter(None, (message.subject.encode(), sid, message.reply)))
                    block, payload = message.block, message.payload
                    if block:
                        head = b"HMSG %b %d %d\r\n" % (to, len(block), len(block) + len(payload))
                    else:
                        head = b"MSG %b %d\r\n" % (to, len(payload))
                    self._say(session.number, head + block + payload + b"\r\n")
        return heard


def headers_of(block: bytes) -> Headers:
    """The headers of a block, the last of each name."""
    lines = block.decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def all_headers_of(block: bytes) -> dict[str, list[str]]:
    """The headers of a block, all of each name."""
    found: dict[str, list[str]] = {}
    for line in block.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.strip())
    return found

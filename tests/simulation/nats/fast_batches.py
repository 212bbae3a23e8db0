"""Fast ingest (NATS ADR-50) as nats-server 2.14 does it: the open batches of one stream, on one server. Pure.

:meth:`FastBatches.take` says what is answered to a part of a batch, and whether its message is to be stored;
:meth:`FastBatches.stored` what is answered when it is. Replicas that follow note what is stored of each batch, so that
the next leader goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import orjson

if TYPE_CHECKING:
    from ..jetstream_rules import Stream

#: Subject and payload.
Answers = list[tuple[str, bytes]]
_END, _PING = 3, 4
_MOST_FLOW = 500
_IDLE = 10.0  #: seconds after which a batch is forgotten
_UNKNOWN = (400, 10208, "batch publish ID unknown")
_DISABLED = (400, 10205, "batch publish is disabled")


class Part(NamedTuple):
    """What the reply subject of a message says: its batch, and its number in it."""

    reply: str
    id: str
    flow: int
    gaps: bool
    number: int
    op: int

    @classmethod
    def of(cls, reply: str) -> Part | None:
        """None: it belongs to no batch."""
        if not reply.endswith(".$FI"):
            return None
        id_, flow, gaps, number, op, _ = reply.split(".")[-6:]
        return cls(reply, id_, int(flow), gaps == "ok", int(number), int(op))


@dataclass(slots=True)
class _Batch:
    """In the words of nats-server.

    :ivar lseq: number of the last message; ``pseq``: that is stored, and ``sseq`` its sequence; ``fseq``: of the last
        flow acknowledgement
    """

    most: int
    every: int
    at: float
    lseq: int = 0
    sseq: int = 0
    pseq: int = 0
    fseq: int = 0
    pending: int = 0
    reply: str = ""
    commit: bool = False


class FastBatches:
    """Of one stream.

    :ivar open: by id
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.open: dict[str, _Batch] = {}

    def take(
        self, part: Part, subject: str, headers: Mapping[str, str], payload: bytes, now: float
    ) -> tuple[Answers, bool]:
        """The answers, and whether the message is to be stored."""
        stream = self._stream
        refusal = stream.turn_away(payload) if stream.config.get("allow_batched") else _DISABLED
        if refusal is not None:
            return [(part.reply, stream.error(refusal))], False
        for id_ in [id_ for id_, batch in self.open.items() if not batch.commit and now - batch.at >= _IDLE]:
            del self.open[id_]
        batch = self.open.get(part.id)
        if batch is None:
            if part.number != 1:
                return [(part.reply, stream.error(_UNKNOWN))], False
            batch = self._new(part, now)
        batch.at = now
        if batch.commit:
            return [], False
        if part.op == _PING:
            return [(part.reply, _flow(batch))], False
        return self._next(batch, part, subject, headers, payload, now)

    def _new(self, part: Part, now: float) -> _Batch:
        every = 1 if self.open else min(_MOST_FLOW, part.flow)
        batch = self.open[part.id] = _Batch(part.flow, every, now)
        return batch

    def _next(
        self, batch: _Batch, part: Part, subject: str, headers: Mapping[str, str], payload: bytes, now: float
    ) -> tuple[Answers, bool]:
        out: Answers = []
        if part.number != batch.lseq + 1:
            if part.number > batch.lseq + 1:
                gap = {"type": "gap", "last_seq": batch.lseq + 1, "seq": part.number}
                out.append((part.reply, orjson.dumps(gap)))
            return out + self._commit(batch, part), False
        if part.op == _END:
            if not batch.pending:
                batch.pseq = batch.lseq
            return self._commit(batch, part), False
        batch.lseq += 1
        if part.number == 1:
            out.append((part.reply, orjson.dumps({"type": "ack", "seq": 0, "msgs": batch.every})))
        verdict = self._stream.verdict(subject, headers, payload, now)
        if verdict is None:
            batch.pending += 1
            return out, True
        if isinstance(verdict, int):  # stored, or only proposed: it counts as stored
            if not batch.pending:
                batch.pseq = part.number
                out += self._flow_control(batch, part.reply)
            return out, False
        if part.number == 1:
            del self.open[part.id]
            return [*out, (part.reply, self._stream.error(verdict))], False
        status, code, text = verdict
        error = {"code": status, "err_code": code, "description": text}
        out.append((part.reply, orjson.dumps({"type": "err", "seq": part.number, "error": error})))
        batch.lseq -= 1
        if not batch.pending:
            batch.pseq = batch.lseq
        return out + self._commit(batch, part), False

    def stored(self, part: Part, sequence: int, now: float, *, leads: bool) -> Answers:
        """A message of a batch is stored."""
        batch = self.open.get(part.id)
        if batch is None or not leads:
            batch = batch or self._new(part, now)
            batch.at, batch.sseq, batch.reply = now, sequence, part.reply
            batch.pseq = batch.lseq = part.number
            return []
        batch.reply, batch.sseq = part.reply, sequence
        batch.pending = max(0, batch.pending - 1)
        batch.pseq = part.number if batch.pending else batch.lseq
        if batch.commit and batch.lseq == batch.pseq:
            del self.open[part.id]
            return [(part.reply, self._ack(batch, part.id))]
        return self._flow_control(batch, part.reply)

    def lead(self, now: float) -> Answers:
        """This server leads from now on: it goes on behind what is stored, and says so."""
        out: Answers = []
        for id_, batch in list(self.open.items()):
            if now - batch.at >= _IDLE:
                del self.open[id_]
                continue
            batch.every = 1 if len(self.open) > 1 else min(_MOST_FLOW, batch.most)
            batch.commit, batch.pending, batch.at = False, 0, now
            batch.fseq = batch.lseq = batch.pseq
            if batch.reply:
                out.append((batch.reply, _flow(batch)))
        return out

    def _commit(self, batch: _Batch, part: Part) -> Answers:
        batch.commit = True
        if batch.lseq != batch.pseq:
            return []
        del self.open[part.id]
        return [(part.reply, self._ack(batch, part.id))]

    def _ack(self, batch: _Batch, id_: str) -> bytes:
        found = {"stream": self._stream.name, "seq": batch.sseq, "batch": id_, "count": batch.lseq}
        return orjson.dumps(found)

    def _flow_control(self, batch: _Batch, reply: str) -> Answers:
        if batch.pseq < batch.fseq + batch.every:
            return []
        batch.fseq += (batch.pseq - batch.fseq) // batch.every * batch.every
        most = min(max(1, _MOST_FLOW // max(1, len(self.open))), batch.most)
        batch.every = min(2 * batch.every, most) if batch.every < most else max(most, batch.every // 2)
        return [(reply, _flow(batch))]


def _flow(batch: _Batch) -> bytes:
    return orjson.dumps({"type": "ack", "seq": batch.fseq, "msgs": batch.every})

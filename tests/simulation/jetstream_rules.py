"""JetStream's rules for one stream: what it takes and refuses, what it remembers of ids, and what it removes. Pure.

Messages come in, acknowledgements go out; times are those of the server, in seconds since the epoch. A server alone
calls :meth:`Stream.take`. The leader of a replicated stream calls :meth:`Stream.refusal` before it proposes a message
and :meth:`Stream.stage` with it; each replica calls :meth:`Stream.store` when the message is committed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from .nats.fast_batches import FastBatches

#: Prefix of the subjects of requests.
API = "$JS.API."
Headers = Mapping[str, str]
#: Status, code and text of an error.
Refusal = tuple[int, int, str]
#: What a stream may be made to refuse everything with, for a while.
REFUSALS: tuple[Refusal, ...] = (
    (503, 10077, "no space left on device"),
    (503, 10047, "insufficient storage resources available"),
    (503, 10023, "insufficient resources"),
    (400, 10002, "resource limits exceeded for account"),
    (503, 10008, "JetStream system temporarily unavailable"),
    (429, 10167, "too many requests"),
)
#: And what is final for a message: the stream is full.
FULL: Refusal = (503, 10077, "maximum messages exceeded")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN_PROCESS: Refusal = (409, 10158, "duplicate message id is in process")


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream; ``block``: its header block."""

    sequence: int
    subject: str
    headers: Headers
    payload: bytes
    time: float
    block: bytes = b""

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.payload) + len(self.block) + 16


@dataclass(slots=True)
class Stream:
    """One stream, as one server has it.

    :ivar config: in the words of the API
    :ivar messages: by sequence
    :ivar newest: sequence of the last message of each subject
    :ivar ids: sequence and time of each id in the duplicate window, oldest first; 0 = proposed, and not committed
    :ivar staged: subjects of messages that are proposed, and not committed
    :ivar refuses: it refuses messages with this: of so many as ``every`` says one, which are in ``refused``
    :ivar cluster: who leads it, and the others, as a server of a cluster tells it
    :ivar fast: batches of fast ingest
    """

    config: dict[str, Any]
    created: float
    messages: dict[int, Stored] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    last: int = 0
    ids: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    staged: dict[str, int] = field(default_factory=dict)
    refuses: Refusal | None = None
    every: int = 1
    refused: list[bytes] = field(default_factory=list)
    cluster: dict[str, Any] | None = None
    fast: FastBatches = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        self.fast = FastBatches(self)

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def replicated(self) -> bool:
        return int(self.config["num_replicas"]) > 1

    def take(self, subject: str, headers: Headers, payload: bytes, now: float, block: bytes = b"") -> bytes:
        """Store a message, or not: the acknowledgement."""
        refusal = self.refusal(subject, headers, payload, now)
        return self.ack(self.store(subject, headers, payload, now, block)) if refusal is None else refusal

    def refusal(self, subject: str, headers: Headers, payload: bytes, now: float) -> bytes | None:
        """The answer to a message that is not stored."""
        verdict = self.verdict(subject, headers, payload, now)
        if verdict is None:
            return None
        if isinstance(verdict, int):
            return self.duplicate(verdict) if verdict else self.error(_IN_PROCESS)
        return self.error(verdict)

    def verdict(self, subject: str, headers: Headers, payload: bytes, now: float) -> Refusal | int | None:
        """Why a message is not stored; the sequence of the one with its id, 0 while that is only proposed."""
        expected = headers.get("Nats-Expected-Stream")
        if expected is not None and expected != self.name:
            return 400, 10060, "expected stream does not match"
        if (refusal := self.turn_away(payload)) is not None:
            return refusal
        known, wrong = self._known(headers.get("Nats-Msg-Id"), now), self._unexpected(subject, headers)
        if known is not None and (self.replicated or wrong is None):  # in this order servers look
            return known
        return wrong or self._full(subject)

    def turn_away(self, payload: bytes) -> Refusal | None:
        """What a message is refused with, whatever it is."""
        if self.refuses is None:
            return None
        self._turn = (self._turn + 1) % self.every
        if self._turn:
            return None
        self.refused.append(payload)
        return self.refuses

    def _known(self, id_: str | None, now: float) -> int | None:
        if not id_:
            return None
        self._forget_ids(now)
        return self.ids[id_][0] if id_ in self.ids else None

    def _unexpected(self, subject: str, headers: Headers) -> Refusal | None:
        proposed = self.last + sum(self.staged.values())
        if int(headers.get("Nats-Expected-Last-Sequence", proposed)) != proposed:
            return 400, 10071, f"wrong last sequence: {proposed}"
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is None:
            return None
        if subject in self.staged:
            return 400, 10164, "wrong last sequence"
        last = self.newest.get(subject, 0)
        return None if last == int(expected) else (400, 10071, f"wrong last sequence: {last}")

    def _full(self, subject: str) -> Refusal | None:
        if self.config.get("discard") != "new":
            return None
        most = self.config.get("max_msgs_per_subject", -1)
        if self.config.get("discard_new_per_subject") and 0 < most <= self._count(subject):
            return 503, 10077, "maximum messages per subject exceeded"
        most = self.config.get("max_msgs", -1)
        if 0 < most <= len(self.messages) + sum(self.staged.values()):
            return 503, 10077, "maximum messages exceeded"
        return None

    def _count(self, subject: str) -> int:
        return sum(m.subject == subject for m in self.messages.values())

    def stage(self, subject: str, headers: Headers, now: float) -> None:
        """A message is proposed to the replicas."""
        self.staged[subject] = self.staged.get(subject, 0) + 1
        if id_ := headers.get("Nats-Msg-Id"):
            self.ids[id_] = 0, now

    def forget_proposals(self, before: float) -> None:
        """This server led until then, and forgets the ids of what it had proposed and what is not committed. So does
        nats-server, at once or later; some it keeps for the duplicate window."""
        for id_ in [id_ for id_, (sequence, time) in self.ids.items() if not sequence and time <= before]:
            del self.ids[id_]

    def store(self, subject: str, headers: Headers, payload: bytes, now: float, block: bytes = b"") -> int:
        """Store a message that is not refused: its sequence."""
        self.last += 1
        self.messages[self.last] = Stored(self.last, subject, headers, payload, now, block)
        if subject in self.staged:
            self.staged[subject] -= 1
            if not self.staged[subject]:
                del self.staged[subject]
        if id_ := headers.get("Nats-Msg-Id"):
            self.ids[id_] = self.last, now
            self.ids.move_to_end(id_)
        before = self.newest.pop(subject, 0)
        self.newest[subject] = self.last
        self._remove_old(subject, before)
        return self.last

    def _remove_old(self, subject: str, before: int) -> None:
        most = self.config.get("max_msgs_per_subject", -1)
        if most == 1:
            self.messages.pop(before, None)
        elif most > 1 and self._count(subject) > most:
            self.remove(next(n for n, m in self.messages.items() if m.subject == subject))
        most = self.config.get("max_msgs", -1)
        while 0 < most < len(self.messages):
            self.remove(next(iter(self.messages)))

    def remove(self, sequence: int) -> None:
        """Delete one message."""
        gone = self.messages.pop(sequence, None)
        if gone is None or self.newest[gone.subject] != sequence:
            return
        before = [n for n, m in self.messages.items() if m.subject == gone.subject]
        if before:
            self.newest[gone.subject] = before[-1]
        else:
            del self.newest[gone.subject]

    def purge(self, below: int) -> int:
        """Delete all messages below a sequence: how many there were."""
        n = len(self.messages)
        self._keep({sequence: m for sequence, m in self.messages.items() if sequence >= below})
        return n - len(self.messages)

    def _keep(self, messages: dict[int, Stored]) -> None:
        self.messages, self.newest = messages, {m.subject: sequence for sequence, m in messages.items()}

    def lose_tail(self, n: int) -> None:
        """The last messages were not on the disk when the power failed."""
        self.last = max(0, self.last - n)
        self._keep({sequence: m for sequence, m in self.messages.items() if sequence <= self.last})
        self.ids = OrderedDict((id_, known) for id_, known in self.ids.items() if known[0] <= self.last)

    def _forget_ids(self, now: float) -> None:
        oldest = now - self.config["duplicate_window"] / 1e9
        while self.ids and next(iter(self.ids.values()))[1] <= oldest:
            self.ids.popitem(last=False)

    # --- answers -----------------------------------------------------------------------------------------------------

    def ack(self, sequence: int) -> bytes:
        """That a message is stored."""
        return b'{"stream":"%b","seq":%d}' % (self.name.encode(), sequence)

    def duplicate(self, sequence: int) -> bytes:
        """That one with this id is stored."""
        return b'{"stream":"%b","seq":%d,"duplicate": true}' % (self.name.encode(), sequence)

    def error(self, refusal: Refusal) -> bytes:
        """That it is not."""
        return orjson.dumps({**error(*refusal), "stream": self.name, "seq": 0})

    def find(self, which: Mapping[str, Any]) -> Stored | None:
        """The message of a request: ``seq``, ``last_by_subj``, ``next_by_subj``."""
        if (pattern := which.get("last_by_subj")) is not None:
            if pattern in self.newest or ("*" not in pattern and ">" not in pattern):
                return self.messages.get(self.newest.get(pattern, 0))
            fits = [n for subject, n in self.newest.items() if matches(pattern, subject)]
            return self.messages[max(fits)] if fits else None
        sequence = int(which.get("seq", 0))
        if (pattern := which.get("next_by_subj")) is not None:
            return next((m for n, m in self.messages.items() if n >= sequence and matches(pattern, m.subject)), None)
        return self.messages.get(sequence)

    def first_at(self, time: str) -> int:
        """The first sequence that was stored at a time or later; that behind the last one, where none was."""
        micros = (datetime.fromisoformat(time) - _EPOCH) // timedelta(microseconds=1)
        return next((n for n, m in self.messages.items() if micros_of(m.time) >= micros), self.last + 1)

    def info(self, *, deleted: bool = False) -> dict[str, Any]:
        """The answer to ``STREAM.INFO``, without its type."""
        messages = self.messages
        first = next(iter(messages), self.last + 1 if self.last else 0)
        state = {
            "messages": len(messages),
            "bytes": sum(m.size for m in messages.values()),
            "first_seq": first,
            "first_ts": text_of(messages[first].time) if first in messages else "0001-01-01T00:00:00Z",
            "last_seq": self.last,
            "last_ts": text_of(messages[self.last].time) if self.last in messages else "0001-01-01T00:00:00Z",
            "num_subjects": len(self.newest),
            "num_deleted": self.last - first + 1 - len(messages) if messages else 0,
            "consumer_count": 0,
        }
        if deleted:
            state["deleted"] = [n for n in range(first, self.last + 1) if n not in messages]
        found = {"config": self.config, "created": text_of(self.created), "state": state}
        return found if self.cluster is None else {**found, "cluster": self.cluster}


def error(status: int, code: int, text: str) -> dict[str, Any]:
    """What the API answers to what it does not do."""
    return {"error": {"code": status, "err_code": code, "description": text}}


def micros_of(time: float) -> int:
    """A time in whole microseconds: all that tell one must tell the same."""
    return round(time * 1e6)


@lru_cache(1 << 10)
def text_of(time: float) -> str:
    """A time as the API tells it."""
    told = _EPOCH + timedelta(microseconds=micros_of(time))
    return told.isoformat().replace("+00:00", "Z")


@lru_cache(1 << 12)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with ``*`` and ``>`` means."""
    if pattern == subject:
        return True
    if "*" not in pattern and ">" not in pattern:
        return False
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)

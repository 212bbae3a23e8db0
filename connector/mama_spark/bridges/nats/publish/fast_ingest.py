"""Fast ingest over a connection: one open batch a stream, in the clothes of ``send`` and ``poll``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mama_spark.bridge import Acks, PollResult, Refusals
from mama_spark.errors import BlockedByPredecessor, PublishError, Rejected
from mama_spark.message import Int64s, MessageBatch

from ..connection.connection import Connection
from ..errors import NOT_BATCHED
from ..protocol.acks import Reply
from ..protocol.fast_batch import (
    APPEND,
    END,
    START,
    FastBatch,
    SettledTokens,
    parse_reply,
    reply_prefix,
    reply_suffix,
)
from ..protocol.frames import TOKEN_WIDTH, Framer, PublishFrames
from ..protocol.frames import ReplySubject as ReplyTo
from ..settings import NatsSettings
from .ack_queue import AckQueue
from .stream_router import StreamRouter

MAX_FLOW = 500
#: A batch that waits this long without an answer is ended: its last messages would never be acknowledged else.
IDLE = 0.25
RESOLVE = 3.0  #: seconds for the server to say after a reconnect what it has


@dataclass(slots=True)
class _Open:
    """A batch, and what belongs to it outside of its state."""

    stream: str
    batch: FastBatch
    framer: Framer
    subject: str
    at: float


@dataclass(slots=True)
class _Probe:
    """A message that went by itself, with an acknowledgement of its own."""

    token: int
    stream: str
    at: float


class FastIngestPublisher:
    """Batches of one bridge. ``send``, ``end_all`` and ``poll`` come from its thread, answers from the loop's.

    Some streams count an id as stored as soon as its message is proposed (see ``StreamRouter.certain``). There messages
    go one at a time, with an ack each, as long as what went before them may still be undecided: at the beginning (a
    task that was tried before may have sent the same) and behind a doubt. The first one that is stored anew ends this:
    with it everything is decided that its leader had been given before.

    :param router: knows the streams, and is told of those that do not allow fast ingest
    :param plain: writes the first message of a batch by itself under a token
    """

    def __init__(
        self,
        connection: Connection,
        ack_queue: AckQueue,
        settings: NatsSettings,
        router: StreamRouter,
        plain: Callable[[MessageBatch, int], None],
    ) -> None:
        self._connection, self._ack_queue, self._settings, self._router, self._plain = (
            connection,
            ack_queue,
            settings,
            router,
            plain,
        )
        self._flow = max(1, min(MAX_FLOW, settings.max_in_flight // 8))
        self._open: dict[str, _Open] = {}  # by stream: takes messages
        self._ids: dict[str, _Open] = {}  # by batch id: has unsettled messages
        self._lock = threading.Lock()
        self._starved = False  # something waits for room
        self._decided: set[str] = set()  # streams where nothing undecided lies before what is sent now
        self._alone: _Probe | None = None
        self._resolved: Callable[[], None] | None = None

    def send(self, batch: MessageBatch, first_token: int, stream_for: Callable[[str], str]) -> int:
        """Take the rows up to the first that must wait, or that belongs to another stream than those before it."""
        topics = batch.topics
        owners = [stream_for(t) if t is not None else "" for t in topics.dictionary.to_pylist()]
        indices = topics.indices.to_numpy(zero_copy_only=False)
        sent = 0
        with self._lock:
            while sent < len(batch):
                stream = owners[indices[sent]]
                if len(set(owners)) == 1:
                    end = len(batch)
                else:
                    other = np.flatnonzero(np.array([owners[i] != stream for i in indices[sent:]]))
                    end = sent + int(other[0]) if len(other) else len(batch)
                taken = self._append(stream, batch.slice(sent, end - sent), first_token + sent)
                sent += taken
                if sent < end:
                    break
            self._starved = sent < len(batch)
        return sent

    def _append(self, stream: str, rows: MessageBatch, first_token: int) -> int:
        opened = self._open.get(stream)
        if opened is not None and (opened.batch.full or opened.batch.spoilt):
            self._end(opened)
            opened = None
        if opened is None:
            if self._settings.ordered and (
                self._ack_queue.refused or any(o.stream == stream for o in self._ids.values())
            ):
                return 0  # what is refused goes again first: a new batch would overtake it
            if stream not in self._decided and not self._router.dedup_is_safe(stream):
                return self._send_alone(stream, rows, first_token)
            opened = self._begin(stream, rows.topics[0].as_py())
        n = min(len(rows), opened.batch.room())
        if n <= 0:
            return 0
        tokens = np.arange(first_token, first_token + n)
        first = opened.batch.add(tokens)
        opened.at = time.monotonic()
        if first == 1:
            begin = Framer(self._reply_to(opened.batch, START)).frames(rows.slice(0, 1), 1)
            self._connection.write(begin)
            if n == 1:
                return 1
            rows, first, n = rows.slice(1, n - 1), 2, n - 1
            self._connection.write(opened.framer.frames(rows, first))
            return n + 1
        self._connection.write(opened.framer.frames(rows.slice(0, n), first))
        return n

    def _send_alone(self, stream: str, rows: MessageBatch, first_token: int) -> int:
        now, before = time.monotonic(), self._alone
        if before is not None and now - before.at < self._settings.wait_timeout:
            return 0
        self._alone = _Probe(first_token, stream, now)
        self._plain(rows.slice(0, 1), first_token)
        return 1

    def _reply_to(self, batch: FastBatch, op: int) -> ReplyTo:
        return ReplyTo(reply_prefix(self._connection.inbox, batch.id, batch.flow), reply_suffix(op))

    def _begin(self, stream: str, subject: str) -> _Open:
        # on this connection unique with the token counter, which no lease begins anew; the inbox makes it so elsewhere
        self._connection.next_token += 1
        name = f"{self._connection.inbox[7:-1].decode()}-{self._connection.next_token}"
        batch = FastBatch(name, self._flow)
        opened = _Open(stream, batch, Framer(self._reply_to(batch, APPEND)), subject, time.monotonic())
        self._open[stream] = self._ids[name] = opened
        return opened

    def _end(self, opened: _Open) -> None:
        self._open.pop(opened.stream, None)
        seq = opened.batch.end()
        opened.at = time.monotonic()
        self._connection.write(self._control(opened, seq, END))

    def _control(self, opened: _Open, seq: int, op: int) -> PublishFrames:
        reply = self._reply_to(opened.batch, op)
        text = b"PUB %s %s%0*d%s 0\r\n\r\n" % (
            *(opened.subject.encode(), reply.prefix),
            *(TOKEN_WIDTH, seq, reply.suffix),
        )
        return PublishFrames([memoryview(text)], len(text), np.array([0, len(text)]))

    @property
    def busy(self) -> bool:
        """Is a batch without its final answer?"""
        return bool(self._ids)

    def end_all(self) -> None:
        """No more messages for now: ask for the final answers."""
        with self._lock:
            for opened in list(self._open.values()):
                self._end(opened)

    def poll(self, timeout: float, want: int) -> PollResult:
        """Wait as the bridge does, and end batches in which nothing moves."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            polled = self._ack_queue.take(min(left, IDLE) if left > 0 else 0, want)
            self._end_stuck()
            if polled or left <= IDLE:
                return polled

    def _end_stuck(self) -> None:
        if not self._connection.up:
            return
        with self._lock:
            old = time.monotonic() - IDLE
            for opened in list(self._open.values()):
                if opened.batch.unsettled and opened.at < old:
                    self._end(opened)

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        """An answer to a message or to the end of a batch."""
        named = parse_reply(subject, self._connection.inbox)
        if named is None:
            return
        name, seq = named
        with self._lock:
            opened = self._ids.get(name)
            if opened is None:
                return
            opened.at = time.monotonic()
            if isinstance(reply, PublishError) and reply.code == NOT_BATCHED:
                reply = self._switched_off(opened.stream)
            settled = opened.batch.reply(reply, seq)
            self._tidy(opened)
            self._tell(settled, opened.stream)  # under the lock: whoever begins another batch knows of refusals
        self._maybe_resolved()

    @property
    def waits_for_one(self) -> bool:
        """A message went by itself: :meth:`on_answer` wants to hear of it."""
        return self._alone is not None

    def on_answer(self, tokens: Int64s, stored_anew: bool) -> None:
        """Answers to messages that went by themselves."""
        with self._lock:
            alone = self._alone
            if alone is None or alone.token not in tokens:
                return
            self._alone = None
            if stored_anew:
                self._decided.add(alone.stream)
        self._ack_queue.wake()

    def on_disconnected(self) -> None:
        """Answers that are on their way are lost."""
        with self._lock:
            self._alone = None

    def _switched_off(self, stream: str) -> PublishError:
        text = f"stream {stream!r} does not allow fast ingest (allow_batched)"
        return (
            BlockedByPredecessor(text, NOT_BATCHED) if self._router.fall_back(stream) else Rejected(text, NOT_BATCHED)
        )

    def _tidy(self, opened: _Open) -> None:
        if opened.batch.room() == 0 and opened.batch.phase.value != "open" and self._open.get(opened.stream) is opened:
            del self._open[opened.stream]
        if opened.batch.phase.value == "ended":
            self._ids.pop(opened.batch.id, None)

    def _tell(self, settled: SettledTokens, stream: str) -> None:
        now = time.monotonic()
        if settled.acked:
            self._ack_queue.acks(Acks(np.concatenate(settled.acked), None, None, stream or None, now))
            if self._starved:
                self._starved = False
                self._ack_queue.wake()
        for tokens, error in settled.refused:
            if error.may_have_landed:
                self._decided.discard(stream)
            self._ack_queue.refusals(Refusals(tokens, error, now))

    def resolve(self, done: Callable[[], None]) -> bool:
        """After a reconnect: ask what the server has of each open batch, then call ``done``; False if there is none."""
        with self._lock:
            if not self._ids:
                return False
            self._resolved = done
            for opened in list(self._ids.values()):
                if opened.batch.phase.value == "open":
                    self._end(opened)
                else:
                    self._connection.write(self._control(opened, opened.batch.seq + 1, END))
        self._connection.loop.loop.call_later(RESOLVE, self._unresolved)
        return True

    def _unresolved(self) -> None:
        if self._resolved is None:
            return
        with self._lock:
            lost = [(o, o.batch.lost("no answer about the batch after the reconnect")) for o in self._ids.values()]
            self._ids.clear()
            self._open.clear()
        for opened, settled in lost:
            self._tell(settled, opened.stream)
        self._maybe_resolved()

    def _maybe_resolved(self) -> None:
        done = self._resolved
        if done is not None and not self._ids:
            self._resolved = None
            done()

"""Fast ingest over a connection (NATS ADR-50): one open batch per stream, exposed through ``send()`` and ``poll()``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mama_spark.contracts.bridge import Acks, PollResult, Refusals
from mama_spark.contracts.errors import (
    BlockedByPredecessor,
    MamaError,
    PublishError,
    Rejected,
)
from mama_spark.contracts.message import Int64s, MessageBatch

from ..connection.socket_connection import SocketConnection
from ..error_codes import NOT_BATCHED
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
from ..protocol.frames import TOKEN_WIDTH, Framer
from ..protocol.frames import ReplySubject as ReplyTo
from ..settings import NatsSettings
from .ack_queue import AckQueue
from .stream_router import StreamRouter
from .undecided import LoneMessages, UndecidedStreams

MAX_FLOW = 500
#: Seconds without an answer after which a batch is ended; otherwise its last messages would never be acknowledged.
IDLE = 0.25
RESOLVE = 3.0  #: seconds to wait for the answers about open batches after a reconnect


@dataclass(slots=True)
class _OpenBatch:
    stream: str
    batch: FastBatch
    framer: Framer
    subject: str
    at: float


class FastIngestPublisher:
    """Batches of one bridge, on the thread that drives the connection.

    :param router: finds the stream of a topic; learns which streams do not allow fast ingest
    :param send_plain: writes messages outside of batches, with tokens from the given one
    :param wait: drives the connection: maximum seconds, wanted number of answered tokens
    """

    def __init__(
        self,
        connection: SocketConnection,
        ack_queue: AckQueue,
        settings: NatsSettings,
        router: StreamRouter,
        send_plain: Callable[[MessageBatch, int], None],
        wait: Callable[[float, int], PollResult],
    ) -> None:
        self._connection, self._ack_queue, self._settings = connection, ack_queue, settings
        self._router, self._wait = router, wait
        self._flow = max(1, min(MAX_FLOW, settings.max_in_flight // 8))
        self._open: dict[str, _OpenBatch] = {}  # by stream; accepts messages
        self._by_id: dict[str, _OpenBatch] = {}  # by batch id; has unsettled messages
        self._waiting_for_capacity = False
        self._undecided = UndecidedStreams(connection, settings)
        self.alone = LoneMessages(self._undecided, ack_queue, settings, send_plain)
        self._resolved: Callable[[], None] | None = None
        self._resolve_until = 0.0

    def send(self, batch: MessageBatch, first_token: int, stream_for: Callable[[str], str]) -> int:
        """Send rows up to the first that must wait; returns how many were sent."""
        topics = batch.topics
        owners = [stream_for(t) if t is not None else "" for t in topics.dictionary.to_pylist()]
        indices = topics.indices.to_numpy(zero_copy_only=False)
        sent = 0
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
        self._waiting_for_capacity = sent < len(batch)
        return sent

    def _append(self, stream: str, rows: MessageBatch, first_token: int) -> int:
        open_batch = self._open.get(stream)
        if open_batch is not None and (open_batch.batch.full or open_batch.batch.rejected):
            self._end(open_batch)
            open_batch = None
        if open_batch is None:
            if self._settings.ordered and (
                self._ack_queue.refused or any(o.stream == stream for o in self._by_id.values())
            ):
                return 0  # refused messages are resent first: a new batch would overtake them
            sent = self.alone.send(stream, rows, first_token, self._router.dedup_is_safe)
            if sent is not None:
                return sent
            open_batch = self._begin(stream, rows.topics[0].as_py())
        n = min(len(rows), open_batch.batch.capacity())
        if n <= 0:
            return 0
        tokens = np.arange(first_token, first_token + n)
        first = open_batch.batch.add(tokens)
        open_batch.at = time.monotonic()
        begun = 1 if first == 1 else 0  # rows that begin the batch
        if begun:
            begin = Framer(_reply_to(self._connection.inbox, open_batch.batch, START)).frames(rows.slice(0, 1), 1)
            self._connection.write(begin)
        if n > begun:
            self._connection.write(open_batch.framer.frames(rows.slice(begun, n - begun), first + begun))
        return n

    def _begin(self, stream: str, subject: str) -> _OpenBatch:
        # unique: the token counter continues over all bridges of a connection, and the inbox names the connection
        self._connection.next_token += 1
        name = f"{self._connection.inbox[7:-1].decode()}-{self._connection.next_token}"
        batch = FastBatch(name, self._flow)
        open_batch = _OpenBatch(
            stream, batch, Framer(_reply_to(self._connection.inbox, batch, APPEND)), subject, time.monotonic()
        )
        self._open[stream] = self._by_id[name] = open_batch
        return open_batch

    def _end(self, open_batch: _OpenBatch) -> None:
        self._open.pop(open_batch.stream, None)
        seq = open_batch.batch.end()
        open_batch.at = time.monotonic()
        self._ask_for_end(open_batch, seq)

    def _ask_for_end(self, open_batch: _OpenBatch, seq: int) -> None:
        to = _reply_to(self._connection.inbox, open_batch.batch, END)
        with contextlib.suppress(MamaError):  # the connection breaks
            self._connection.publish(open_batch.subject, b"", b"%b%0*d%b" % (to.prefix, TOKEN_WIDTH, seq, to.suffix))

    @property
    def busy(self) -> bool:
        """Whether a batch waits for its final answer."""
        return bool(self._by_id)

    def end_all(self) -> None:
        """End all open batches, so that the server sends their final answers."""
        for open_batch in list(self._open.values()):
            self._end(open_batch)

    def poll(self, timeout: float, want: int) -> PollResult:
        """As :meth:`.PublisherBridge.poll`; ends batches without an answer for :data:`IDLE`."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            polled = self._wait(min(left, IDLE) if left > 0 else 0, want)
            self._end_stuck()
            self.alone.give_up_late(IDLE)
            self._give_up_late_batches()
            self._give_up_resolving()
            if polled or left <= IDLE:
                return polled

    def _end_stuck(self) -> None:
        if not self._connection.up:
            return
        old = time.monotonic() - IDLE
        for open_batch in list(self._open.values()):
            if open_batch.batch.unsettled and open_batch.at < old:
                self._end(open_batch)

    def _give_up_late_batches(self) -> None:
        """Give up ended batches whose last answer was lost with a leader, so that others may begin."""
        if self._connection.up and self._resolved is None:
            timeout = self._settings.wait_timeout
            old = time.monotonic() - timeout - IDLE
            ended = [one for one in self._by_id.values() if self._open.get(one.stream) is not one]
            self._give_up([one for one in ended if one.at < old], f"no acknowledgement within {timeout:g} s")

    # --- answers ---------------------------------------------------------------------------------------

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        named = parse_reply(subject, self._connection.inbox)
        if named is None:
            return
        name, seq = named
        open_batch = self._by_id.get(name)
        if open_batch is None:
            return
        open_batch.at = time.monotonic()
        if isinstance(reply, PublishError) and reply.code == NOT_BATCHED:
            reply = self._switched_off(open_batch.stream)
        settled = open_batch.batch.reply(reply, seq)
        if open_batch.batch.rejected:
            self.alone.start()
        self._forget_finished(open_batch)
        self._report(settled, open_batch.stream)  # before another batch begins
        self._report_resolved()

    def on_denied(self, tokens: Int64s, error: PublishError) -> None:
        """Settle messages that the server dropped; their batches get no answer about them."""
        self.alone.start()
        for open_batch in list(self._by_id.values()):
            settled = open_batch.batch.denied(tokens, error)
            self._forget_finished(open_batch)
            self._report(settled, open_batch.stream)
        self._report_resolved()

    def _switched_off(self, stream: str) -> PublishError:
        text = f"stream {stream!r} does not allow fast ingest (allow_batched)"
        if self._router.acks.fall_back_to_messages(f"stream {stream!r} does not allow fast ingest"):
            return BlockedByPredecessor(text, NOT_BATCHED)
        return Rejected(text, NOT_BATCHED)

    def _forget_finished(self, open_batch: _OpenBatch) -> None:
        if (
            open_batch.batch.capacity() == 0
            and open_batch.batch.phase.value != "open"
            and self._open.get(open_batch.stream) is open_batch
        ):
            del self._open[open_batch.stream]
        if open_batch.batch.phase.value == "ended":
            self._by_id.pop(open_batch.batch.id, None)

    def _report(self, settled: SettledTokens, stream: str) -> None:
        now = time.monotonic()
        if settled.acked:
            self._ack_queue.acks(Acks(np.concatenate(settled.acked), None, None, stream or None, now))
            if self._waiting_for_capacity:
                self._waiting_for_capacity = False
                self._ack_queue.wake()
        for tokens, error in settled.refused:
            self._undecided.seen(stream)
            self._ack_queue.refusals(Refusals(tokens, error, now))

    def resolve(self, done: Callable[[], None]) -> bool:
        """After a reconnect, end each open batch, so that the server reports its stored messages; then call ``done``.
        False: no batch is open, and ``done`` is not called."""
        if not self._by_id:
            return False
        self._resolved = done
        for open_batch in list(self._by_id.values()):
            if open_batch.batch.phase.value == "open":
                self._end(open_batch)
            else:
                self._ask_for_end(open_batch, open_batch.batch.seq + 1)
        self._resolve_until = time.monotonic() + RESOLVE
        return True

    def _give_up_resolving(self) -> None:
        if self._resolved is not None and time.monotonic() >= self._resolve_until:
            self._give_up(list(self._by_id.values()), "no answer about the batch after the reconnect")
            self._report_resolved()

    def _give_up(self, batches: Sequence[_OpenBatch], why: str) -> None:
        lost = [(one, one.batch.lost(why)) for one in batches]
        for one in batches:
            self._by_id.pop(one.batch.id, None)
            if self._open.get(one.stream) is one:
                del self._open[one.stream]
        for one, settled in lost:
            self._report(settled, one.stream)

    def _report_resolved(self) -> None:
        done = self._resolved
        if done is not None and not self._by_id:
            self._resolved = None
            done()


def _reply_to(inbox: bytes, batch: FastBatch, op: int) -> ReplyTo:
    return ReplyTo(reply_prefix(inbox, batch.id, batch.flow), reply_suffix(op))

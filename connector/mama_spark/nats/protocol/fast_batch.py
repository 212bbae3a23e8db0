"""State of one batch of fast ingest in ``fail`` mode (NATS ADR-50). Pure.

Messages of a batch are numbered from 1. The server stores them in order, acknowledges periodically up to which number
everything is stored, and stores nothing after the first rejection or gap: so every answer settles a prefix.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from mama_spark.contracts.errors import (
    BlockedByPredecessor,
    ExpectationFailed,
    OutcomeUnknown,
    OutOfResources,
    PublishError,
    RateLimited,
    Rejected,
    TooLarge,
)
from mama_spark.contracts.message import Int64s

from ..error_codes import NOT_BATCHED, UNKNOWN_BATCH
from .acks import BatchGap, BatchRejection, FlowAck, PubAck, Reply

MAX_MESSAGES = 100_000
#: Flow acknowledgements that may be outstanding before sending stalls.
OUTSTANDING = 8

START, APPEND, END = 0, 1, 3
#: Errors of one message that the server examined and did not store.
_NOT_TAKEN = (ExpectationFailed, OutOfResources, RateLimited, Rejected, TooLarge)
#: Rejections of the batch as such: no message of it can be stored.
_OF_THE_BATCH = frozenset({NOT_BATCHED, 10206, 10207})


class Phase(Enum):
    OPEN = "open"
    ENDING = "ending"  #: the end was sent and not answered
    BROKEN = "broken"  #: a gap or rejection was reported; the final answer will follow
    ENDED = "ended"


class BatchEvent(Enum):
    END = "end sent"
    BREAK = "gap or refusal"
    FINAL = "final answer"


TABLE: dict[Phase, dict[BatchEvent, Phase]] = {
    Phase.OPEN: {BatchEvent.END: Phase.ENDING, BatchEvent.BREAK: Phase.BROKEN, BatchEvent.FINAL: Phase.ENDED},
    Phase.ENDING: {BatchEvent.BREAK: Phase.BROKEN, BatchEvent.FINAL: Phase.ENDED},
    Phase.BROKEN: {BatchEvent.BREAK: Phase.BROKEN, BatchEvent.FINAL: Phase.ENDED},
    Phase.ENDED: {},
}


class IllegalBatchStep(AssertionError):
    """A step that the phase of the batch does not allow: a defect of this package."""


@dataclass(slots=True)
class SettledTokens:
    """Tokens that an answer settled: stored ones, and those with an error (not stored, or unknown)."""

    acked: list[Int64s] = field(default_factory=list)
    refused: list[tuple[Int64s, PublishError]] = field(default_factory=list)


def reply_prefix(inbox: bytes, batch_id: str, flow: int) -> bytes:
    """Start of the reply subject of a batch's messages."""
    return b"%s%s.%d.fail." % (inbox, batch_id.encode(), flow)


def reply_suffix(op: int) -> bytes:
    return b".%d.$FI" % op


def parse_reply(subject: bytes, inbox: bytes) -> tuple[str, int] | None:
    """Batch id and sequence in a reply subject; None if it belongs to no batch."""
    parts = subject[len(inbox) :].split(b".")
    if not subject.startswith(inbox) or len(parts) != 6 or parts[5] != b"$FI" or not parts[3].isdigit():
        return None
    return parts[0].decode(errors="replace"), int(parts[3])


class FastBatch:
    """One batch of one stream, with a flow acknowledgement requested after each ``flow`` messages."""

    def __init__(self, batch_id: str, flow: int) -> None:
        self.id, self.flow = batch_id, flow
        self.phase = Phase.OPEN
        self.seq = 0  #: of the last message sent
        self.acked = 0  #: everything up to here is stored
        self.confirmed = False  #: the server has acknowledged the batch
        self._every = flow
        self._tokens: deque[tuple[int, Int64s]] = deque()  # first sequence of a run, its tokens
        self._rejection: BatchRejection | None = None

    def __repr__(self) -> str:
        return f"<FastBatch {self.id} {self.phase.value}, {self.acked} of {self.seq} stored>"

    @property
    def unsettled(self) -> int:
        return self.seq - self.acked

    def capacity(self) -> int:
        if self.phase is not Phase.OPEN or self.rejected:
            return 0
        stall = self.acked + max(self._every, 1) * OUTSTANDING + 1  # the stall rule is tested after sending
        return max(0, min(stall, MAX_MESSAGES) - self.seq)

    @property
    def full(self) -> bool:
        return self.seq >= MAX_MESSAGES

    @property
    def rejected(self) -> bool:
        """Whether a message was rejected: nothing more is stored, and the end must be sent to close the batch."""
        return self._rejection is not None

    def add(self, tokens: Int64s) -> int:
        """Note that the next messages were sent; returns the sequence of the first."""
        if self.phase is not Phase.OPEN:
            raise IllegalBatchStep(f"a message for a batch that is {self.phase.value}")
        first = self.seq + 1
        self._tokens.append((first, tokens))
        self.seq += len(tokens)
        return first

    def end(self) -> int:
        """Note that the end was sent; returns its sequence (it stores nothing)."""
        self._step(BatchEvent.END)
        return self.seq + 1

    def reply(self, reply: Reply, seq: int) -> SettledTokens:
        out = SettledTokens()
        if self.phase is Phase.ENDED:
            return out  # every message after a rejected one gets its own answer: they are settled
        if self._impossible(reply):
            reply = OutcomeUnknown(f"an answer that is none to this batch: {reply}")
        if isinstance(reply, FlowAck):
            self.confirmed = True
            self._every = reply.every or self._every
            self._ack(reply.seq, out)
        elif isinstance(reply, BatchGap):
            self._step(BatchEvent.BREAK)
        elif isinstance(reply, BatchRejection):
            self._note_rejection(reply)
            self._step(BatchEvent.BREAK)
        elif isinstance(reply, PubAck):
            self._ack(reply.count, out)
            self._finish(out)
        elif isinstance(reply, PublishError):
            self._error(reply, seq, out)
        return out

    def denied(self, tokens: Int64s, error: PublishError) -> SettledTokens:
        """Note that the server dropped messages before they reached the batch, which it does not answer."""
        out = SettledTokens()
        for first, mine in self._tokens:
            dropped = np.flatnonzero(np.isin(mine, tokens))
            if len(dropped):
                seq = first + int(dropped[0])
                self._note_rejection(BatchRejection(seq, error))
                if seq == 1:  # it never began: the answers to all of it, its end included, may have come before
                    self._finish(out)
                break
        return out

    def lost(self, why: str) -> SettledTokens:
        """Settle the other messages as unknown: no more answers will arrive."""
        out = SettledTokens()
        if self.phase is not Phase.ENDED:
            self._settle_rejected(OutcomeUnknown(why), out)
            self._refuse(self.seq, OutcomeUnknown(why), out)
            self._step(BatchEvent.FINAL)
        return out

    def _impossible(self, reply: Reply) -> bool:
        """Whether a final answer has no batch id: the server stored one message and does not support fast ingest."""
        if isinstance(reply, PubAck):
            return reply.batch != self.id or reply.count > self.seq
        return isinstance(reply, FlowAck) and reply.seq > self.seq

    def _error(self, error: PublishError, seq: int, out: SettledTokens) -> None:
        if error.code == UNKNOWN_BATCH and not self.confirmed and self.acked == 0 and seq > 1 and not self.rejected:
            return  # the answer to the first message has the reason
        if seq == 1 and isinstance(error, Rejected) and error.code not in _OF_THE_BATCH:
            self._rejection = BatchRejection(1, error)  # of this message alone: the server forgets the batch
            self._finish(out)
            return
        if 1 < seq <= self.seq and isinstance(error, _NOT_TAKEN):
            self._note_rejection(BatchRejection(seq, error))  # before it reached the batch: the next makes a gap
            return
        self._settle_rejected(OutcomeUnknown(f"the batch was interrupted: {error.info}"), out)
        if error.code == UNKNOWN_BATCH:
            self._refuse(
                self.seq, OutcomeUnknown("the server has forgotten the batch: restart, new leader or idle"), out
            )
        elif seq == 1 and not self.confirmed:  # a batch that did not begin stores nothing
            self._refuse(self.seq, error, out)
        else:
            self._refuse(seq - 1, OutcomeUnknown(f"the batch was interrupted: {error.info}"), out)
            self._refuse(self.seq, error, out)
        self._step(BatchEvent.FINAL)

    def _finish(self, out: SettledTokens) -> None:
        self._settle_rejected(BlockedByPredecessor("behind a refused message of the batch"), out)
        self._refuse(self.seq, BlockedByPredecessor("behind a gap or a refused message of the batch"), out)
        self._step(BatchEvent.FINAL)

    def _note_rejection(self, rejection: BatchRejection) -> None:
        if self._rejection is None or rejection.seq < self._rejection.seq:
            self._rejection = rejection

    def _settle_rejected(self, before: PublishError, out: SettledTokens) -> None:
        """Settle a rejected message and those after it as not stored."""
        if self._rejection is not None:
            self._refuse(self._rejection.seq - 1, before, out)
            self._refuse(self._rejection.seq, self._rejection.error, out)
            self._refuse(self.seq, BlockedByPredecessor("behind a refused message of the batch"), out)

    def _ack(self, seq: int, out: SettledTokens) -> None:
        out.acked += self._settle(seq)

    def _refuse(self, seq: int, error: PublishError, out: SettledTokens) -> None:
        taken = self._settle(seq)
        if taken:
            out.refused.append((np.concatenate(taken), error))

    def _settle(self, seq: int) -> list[Int64s]:
        seq = min(seq, self.seq)
        taken: list[Int64s] = []
        while self._tokens and self._tokens[0][0] <= seq:
            first, tokens = self._tokens.popleft()
            n = min(seq - first + 1, len(tokens))
            taken.append(tokens[:n])
            if n < len(tokens):
                self._tokens.appendleft((first + n, tokens[n:]))
        self.acked = max(self.acked, seq)
        return taken

    def _step(self, on: BatchEvent) -> None:
        after = TABLE[self.phase].get(on)
        if after is None:
            raise IllegalBatchStep(f"{on.value} is not a step of a batch that is {self.phase.value}")
        self.phase = after

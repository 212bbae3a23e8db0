"""Fast ingest: who gets which error, how far the sender may run ahead, and what ends without an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.errors import BlockedByPredecessor, ExpectationFailed, OutcomeUnknown, PublishError, TooLarge
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats.protocol.acks import BatchGap, BatchRejection, FlowAck, PubAck
from mama_spark.nats.protocol.fast_batch import OUTSTANDING, FastBatch, SettledTokens
from mama_spark.nats.publish import fast_ingest
from mama_spark.nats.publish.ack_queue import AckQueue
from mama_spark.nats.settings import NatsSettings

LARGE, EXPECTED = TooLarge("large"), ExpectationFailed("another")


def batch(n: int = 10) -> FastBatch:
    """Tokens 100 ff.; the server knows it and has stored three."""
    one = FastBatch("b", 5)
    one.add(np.arange(100, 100 + n))
    assert tokens(one.reply(FlowAck(3, 5), 3)) == ([100, 101, 102], {})
    return one


def tokens(settled: SettledTokens) -> tuple[list[int], dict[int, type[PublishError]]]:
    acked = [int(t) for part in settled.acked for t in part]
    return acked, {int(t): type(error) for part, error in settled.refused for t in part}


def test_what_stands_before_a_refused_message_does_not_get_its_error() -> None:
    one = batch()
    assert tokens(one.reply(BatchRejection(6, LARGE), 6)) == ([], {})
    _, refused = tokens(one.lost("the connection was lost"))
    assert refused == {
        103: OutcomeUnknown, 104: OutcomeUnknown, 105: TooLarge, **dict.fromkeys(range(106, 110), BlockedByPredecessor)
    }  # fmt: skip


def test_of_two_refused_messages_the_first_one_is_to_blame() -> None:
    one = batch()
    one.reply(BatchRejection(8, EXPECTED), 8)
    one.reply(BatchRejection(6, LARGE), 6)
    acked, refused = tokens(one.reply(PubAck("S", 5, batch="b", count=5), 10))
    assert acked == [103, 104]
    assert refused == {105: TooLarge, **dict.fromkeys(range(106, 110), BlockedByPredecessor)}


def test_behind_a_gap_nothing_is_stored() -> None:
    one = batch()
    one.reply(BatchGap(6, 7), 7)
    acked, refused = tokens(one.reply(PubAck("S", 5, batch="b", count=5), 10))
    assert (acked, refused) == ([103, 104], dict.fromkeys(range(105, 110), BlockedByPredecessor))


def test_the_server_says_how_far_the_sender_may_run_ahead() -> None:
    one = FastBatch("b", 50)
    assert one.capacity() == 50 * OUTSTANDING + 1
    one.add(np.arange(10))
    one.reply(FlowAck(4, 2), 4)
    assert one.capacity() == 4 + 2 * OUTSTANDING + 1 - 10
    one.reply(FlowAck(6, 0), 6)
    assert one.capacity() == 6 + 2 * OUTSTANDING + 1 - 10, "0: as before"


def test_a_batch_whose_last_answer_is_lost_with_a_leader_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, nothing is sent beside it."""
    now, queue = [100.0], AckQueue()
    monkeypatch.setattr(fast_ingest, "time", SimpleNamespace(monotonic=lambda: now[0]))
    connection: Any = SimpleNamespace(
        up=True, inbox=b"_INBOX.a.", next_token=0, write=lambda frames: None, publish=lambda *message: None
    )
    router: Any = SimpleNamespace(dedup_is_safe=lambda stream: True)
    settings = NatsSettings(ordered=True, wait_timeout=5.0)
    one = fast_ingest.FastIngestPublisher(
        connection, queue, settings, router, lambda *rows: None, lambda timeout, want: queue.take()
    )
    rows = MessageBatch.of(["t"] * 3, [b"x"] * 3)
    assert one.send(rows, 0, lambda topic: "S") == 3
    one.end_all()
    now[0] += 5.0
    assert not one.poll(0.0, 1).refusals
    assert one.send(rows, 3, lambda topic: "S") == 0
    now[0] += 1.0
    one.poll(0.0, 1)
    (refusals,) = one.poll(0.0, 1).refusals
    assert (refusals.tokens.tolist(), type(refusals.error)) == ([0, 1, 2], OutcomeUnknown)
    assert one.send(rows, 3, lambda topic: "S") == 3

"""Fast ingest: who gets which error, and how far the sender may run ahead."""

from __future__ import annotations

import numpy as np
from mama_spark.contracts.errors import BlockedByPredecessor, ExpectationFailed, OutcomeUnknown, PublishError, TooLarge
from mama_spark.nats.protocol.acks import BatchGap, BatchRejection, FlowAck, PubAck
from mama_spark.nats.protocol.fast_batch import OUTSTANDING, FastBatch, SettledTokens

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

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import (
    BlockedByPredecessor,
    ExpectationFailed,
    NoResponders,
    OutcomeUnknown,
    PublishError,
    Rejected,
    TooLarge,
)
from mama_spark.nats.error_codes import from_reply, no_responders
from mama_spark.nats.protocol.acks import BatchGap, BatchRejection, FlowAck, PubAck, Reply
from mama_spark.nats.protocol.fast_batch import (
    MAX_MESSAGES,
    OUTSTANDING,
    FastBatch,
    IllegalBatchStep,
    Phase,
    SettledTokens,
)

from tests.support.tables import each


def batch(n: int, flow: int = 10, confirmed: bool = True) -> FastBatch:
    b = FastBatch("b", flow)
    b.add(np.arange(100, 100 + n))
    if confirmed:
        b.reply(FlowAck(0, flow), 1)
    return b


def acked(s: SettledTokens) -> list[int]:
    return np.concatenate(s.acked).tolist() if s.acked else []


def refused(s: SettledTokens) -> dict[int, type[PublishError]]:
    return {t: type(e) for tokens, e in s.refused for t in tokens.tolist()}


def test_the_end_settles_what_no_flow_ack_covered() -> None:
    b = batch(25)
    assert b.end() == 26
    assert acked(b.reply(PubAck("S", 70, batch="b", count=25), 26)) == list(range(100, 125))
    assert b.phase is Phase.ENDED


def test_a_forgotten_batch_leaves_doubt_behind_the_last_flow_ack() -> None:
    b = batch(25)
    b.reply(FlowAck(10, 10), 10)
    told = b.reply(from_reply(400, 10208, "batch publish ID unknown"), 25)
    assert refused(told) == dict.fromkeys(range(110, 125), OutcomeUnknown)


def test_a_batch_that_never_began_stored_nothing() -> None:
    b = batch(3, confirmed=False)
    assert not b.reply(from_reply(400, 10208, "unknown"), 2).refused, "the start's answer says why"
    assert refused(b.reply(no_responders("a"), 1)) == dict.fromkeys(range(100, 103), NoResponders)


def test_a_refused_end_leaves_all_in_doubt_where_the_answer_to_the_first_message_was_lost() -> None:
    b = batch(3, confirmed=False)
    told = b.reply(from_reply(503, 10002, "resource limits exceeded for account"), b.end())
    assert refused(told) == dict.fromkeys(range(100, 103), OutcomeUnknown)


@each("ended", [False, True])
def test_a_start_that_the_server_dropped_ends_the_batch_also_when_all_answers_came_before(ended: bool) -> None:
    b = batch(3, confirmed=False)
    if ended:
        b.end()
        for seq in (2, 3, 4):
            assert not b.reply(from_reply(400, 10208, "unknown"), seq).refused
    told = refused(b.denied(np.array([100, 102]), Rejected("not allowed")))
    assert told == {100: Rejected, 101: BlockedByPredecessor, 102: BlockedByPredecessor}
    assert b.phase is Phase.ENDED


@each("confirmed", [False, True])
@each("code", [10060, 10071, 10054, 10166])
def test_a_start_refused_for_its_own_sake_is_the_only_one_that_fails(code: int, confirmed: bool) -> None:
    told = refused(batch(3, confirmed=confirmed).reply(from_reply(400, code, "no"), 1))
    assert told == {100: type(from_reply(400, code, "no")), 101: BlockedByPredecessor, 102: BlockedByPredecessor}


@each("confirmed", [False, True])
@each("code", [10060, 10071, 10054, 10166])
def test_a_message_refused_before_it_reaches_its_batch_is_the_only_one_that_fails(code: int, confirmed: bool) -> None:
    b = batch(5, confirmed=confirmed)
    assert not refused(b.reply(error := from_reply(400, code, "no"), 3)), "what is before it may be stored"
    assert (b.capacity(), b.phase) == (0, Phase.OPEN)
    b.reply(BatchGap(3, 4), 4)
    told = b.reply(PubAck("S", 7, batch="b", count=2), 6)
    assert acked(told) == [100, 101]
    assert refused(told) == {102: type(error), 103: BlockedByPredecessor, 104: BlockedByPredecessor}


def test_what_stands_before_a_refused_message_does_not_get_its_error() -> None:
    b = batch(5)
    b.reply(BatchRejection(3, TooLarge("large")), 3)
    told = refused(b.lost("the connection was lost"))
    assert told == dict.fromkeys((100, 101), OutcomeUnknown) | {102: TooLarge} | dict.fromkeys(
        (103, 104), BlockedByPredecessor
    )


def test_of_two_refused_messages_the_first_one_is_to_blame() -> None:
    b = batch(10)
    b.reply(BatchRejection(8, ExpectationFailed("another")), 8)
    b.reply(BatchRejection(6, TooLarge("large")), 6)
    told = b.reply(PubAck("S", 5, batch="b", count=5), 10)
    assert acked(told) == list(range(100, 105))
    assert refused(told) == {105: TooLarge, **dict.fromkeys(range(106, 110), BlockedByPredecessor)}


def test_no_responders_in_mid_batch_is_certain_from_there_on_only() -> None:
    b = batch(10)
    told = refused(b.reply(no_responders("a"), 6))
    assert told == dict.fromkeys(range(100, 105), OutcomeUnknown) | dict.fromkeys(range(105, 110), NoResponders)


def test_sending_stalls_until_a_flow_ack_comes() -> None:
    b = FastBatch("b", 1)
    while b.capacity():
        b.add(np.arange(b.capacity()))
    assert b.seq == OUTSTANDING + 1, "the rule is tested after sending: 1 x 1 must not deadlock"
    b.reply(FlowAck(1, 1), 1)
    assert b.capacity() == 1


def test_the_server_says_how_far_the_sender_may_run_ahead() -> None:
    b = FastBatch("b", 50)
    assert b.capacity() == 50 * OUTSTANDING + 1
    b.add(np.arange(10))
    b.reply(FlowAck(4, 2), 4)
    assert b.capacity() == 4 + 2 * OUTSTANDING + 1 - 10
    b.reply(FlowAck(6, 0), 6)
    assert b.capacity() == 6 + 2 * OUTSTANDING + 1 - 10, "0: as before"


def test_a_batch_is_full_before_the_server_minds() -> None:
    b = FastBatch("b", 500)
    while not b.full:
        b.add(np.arange(b.capacity()))
        b.reply(FlowAck(b.seq, 500), b.seq)
    assert b.seq == MAX_MESSAGES


def test_nothing_is_added_behind_the_end() -> None:
    b = batch(1)
    b.end()
    assert b.capacity() == 0
    with pytest.raises(IllegalBatchStep):
        b.add(np.arange(1))
    with pytest.raises(IllegalBatchStep):
        b.end()


REPLIES = st.one_of(
    st.builds(FlowAck, st.integers(0, 60), st.integers(1, 20)),
    st.builds(BatchGap, st.integers(0, 60), st.integers(0, 60)),
    st.builds(BatchRejection, st.integers(0, 60), st.just(Rejected("no"))),
    st.builds(lambda n, b: PubAck("S", 1, batch=b, count=n), st.integers(0, 60), st.sampled_from(["b", "", "x"])),
    st.sampled_from([no_responders("a"), from_reply(400, 10208, "unknown"), from_reply(429, 10211, "many")]),
)


@given(st.lists(st.tuples(REPLIES, st.integers(1, 60)), max_size=12), st.integers(1, 40))
def test_whatever_is_answered_each_token_is_settled_once(replies: list[tuple[Reply, int]], n: int) -> None:
    b = batch(n)
    seen: list[int] = []
    for reply, seq in replies:
        told = b.reply(reply, seq)
        seen += acked(told) + list(refused(told))
    told = b.lost("the end")
    seen += acked(told) + list(refused(told))
    assert sorted(seen) == list(range(100, 100 + n))

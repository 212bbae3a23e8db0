"""The fast-publish tests of orbit.go (``TestFastPublisher...``) and orbit.py (``test_fast_publish*``) by name, through
the bridge or the publisher against a real server, and on the state machine where no server can be made to say it.

=====================================================  ===============================================================
Not here                                               Because
=====================================================  ===============================================================
gap_ok..., with_continue_on_gap                        gaps are never allowed here
...ping...                                             nothing is pinged: a batch in which nothing moves is ended
add_commit..., empty_close..., fail_mode...            headers, flush and refusals in order: the suite of bridges
sustained_ten_thousand...                              ``test_large_batch``
gap_fail...                                            ``test_jetstream_fast_batch_publish_gap_detection``
custom_multi_token_inbox..., ...invalid_inbox_tokens   the inbox is the connection's own
not_enabled_is_typed_and_unsubscribes                  ``test_rows_fail_with_the_reason_when_their_stream...``
timeout_closes..., direct_no_ack_commit...             ``test_what_the_page_says_of_a_stream_is_what_happens``
...cancellation... (7)                                 no coroutines: ``test_stop_settles_everything...``
...callback...exception...                             ``test_managed_publisher.py``: listeners that raise are counted
real_subscription_end..., closed_client...             ``test_a_users_own_connection_is_used_over_a_cut...``
wait_defensive_paths, fatal_collector...subscription   no subscription a batch; its answers find it by its id
async_context..., drop..., finalizer...                batches belong to a bridge, and that is closed
fatal_collector_timeout..., ...expires...              time-outs are the window's, not the batch's
example, invalid_configuration                         ``test_documented_examples.py``; the window has its own
classify..., reply_subject..., server_error...         ``test_nats_vectors.py``, ``test_nats_errors.py``
test_atomic_publish* (38)                              atomic batches, of 1,000 at most, are never used
=====================================================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.errors import BlockedByPredecessor, ExpectationFailed, OutcomeUnknown, PublishError
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.error_codes import from_reply
from mama_spark.nats.protocol import fast_batch
from mama_spark.nats.protocol.acks import BatchRejection, FlowAck, PubAck, Reply, classify
from mama_spark.nats.protocol.fast_batch import MAX_MESSAGES, FastBatch, Phase, SettledTokens
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver
from tests.support.nats.nats_servers import Admin
from tests.support.nats.plain_nats_connection import PlainNatsConnection
from tests.support.tables import each
from tests.support.tiers import EXPLORE

FAST: dict[str, Any] = {"ack_mode": "batch", "dedup": False}
WRONG = {"Nats-Expected-Last-Sequence": ["99"]}


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"], allow_batched=True)
        yield admin


@pytest.fixture
def bridge(admin: Admin, nats_server: NatsServer) -> Iterator[NatsBridge]:
    with_flow_10 = NatsSettings((nats_server.url,), stream="S", ack_mode="batch", dedup=False, max_in_flight=80)
    bridge = NatsBridge(with_flow_10)
    bridge.open()
    yield bridge
    bridge.close()


def batch_of(n: int, headers: list[dict[str, list[str]] | None] | None = None, first: int = 0) -> MessageBatch:
    return MessageBatch.of(["s.a"] * n, [b"%d" % i for i in range(first, first + n)], headers)


def stored(admin: Admin) -> list[int]:
    return [int(m.payload) for m in admin.messages("S")]


# --- through the bridge --------------------------------------------------------------------------------------------


def test_wire_operations_and_requested_prefix_are_stable(bridge: NatsBridge, nats_server: NatsServer) -> None:
    """Also orbit.go's ReplyPrefixUnchangedOnFlowChange: the flow that was asked for stays in every reply subject."""
    with PlainNatsConnection(nats_server.url) as observer:
        observer.subscribe(b"s.>")
        assert bridge.send(batch_of(1), 0) == 1
        start = observer.message().reply
        assert start is not None
        head, tail = start[: start.rindex(b".fail.") + 6], start[start.rindex(b".fail.") + 6 :]
        assert head.endswith(b".10.fail.")
        assert tail.split(b".") == [b"%012d" % 1, b"0", b"$FI"]
        answers = publish(bridge, batch_of(99, first=1), first=1)
        assert set(answers.sequence) >= set(range(1, 100))
        seen = [observer.message().reply for _ in range(100)]
    assert seen[:99] == [b"%s%012d.1.$FI" % (head, seq) for seq in range(2, 101)]
    assert seen[99] == b"%s%012d.3.$FI" % (head, 101), "the end"


@pytest.mark.parametrize(
    ("window", "n"),
    [(8, 51), (24, 301), (400, 201)],
    ids=["exact_boundary_stall_every_message", "maximum_window_three", "with_flow_control"],
)
def test_custom_flow(admin: Admin, nats_server: NatsServer, window: int, n: int) -> None:
    with Driver(nats_server.url, window=window, **FAST) as driver:
        driver.put(["s.a"], n)
        driver.drain()
        assert driver.events() == {"acked": n}
        driver.in_order(admin)
        driver.conserved(admin)


def test_large_batch(admin: Admin, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a batch may be: the next one follows, in order."""
    most = MAX_MESSAGES if EXPLORE else 10_000
    monkeypatch.setattr(fast_batch, "MAX_MESSAGES", most)
    n = most + 500
    with Driver(nats_server.url, window=8192, **FAST) as driver:
        for _ in range(10):
            driver.put(["s.a"], n // 10, size=8)
        driver.drain()
        assert driver.events() == {"acked": n}
        assert [int(m.payload) for m in admin.messages("S")] == list(range(n))


@pytest.mark.own_server
def test_commit_respects_ack_timeout(admin: Admin, nats_server: NatsServer) -> None:
    with Driver(nats_server.url, wait_timeout=0.3, resend_uncertain=False, **FAST) as driver:
        driver.begin(["s.a"], 100)
        nats_server.pause()
        try:
            driver.put(["s.a"], 100)
            driver.drain()
        finally:
            nats_server.resume()
        assert driver.events() == {"acked": 100, "timeout": 100}
        eventually(lambda: int(admin.info("S")["state"]["messages"]) == 200, "late, they land")
        assert driver.conserved(admin).landed_anyway == 100


def test_abort_is_idempotent_and_releases_inbox(admin: Admin, nats_server: NatsServer) -> None:
    """A bridge that is closed over an open batch: the next one on the same connection hears nothing of it."""
    settings = NatsSettings((nats_server.url,), stream="S", ack_mode="batch", dedup=False)
    first = NatsBridge(settings)
    first.open()
    assert first.send(batch_of(5), 0) == 5
    first.close()
    first.close()
    second = NatsBridge(settings)
    second.open()
    answers = publish(second, batch_of(5, first=5))
    assert sorted(answers.sequence) == list(range(5))
    assert not answers.error
    second.close()
    assert stored(admin) == list(range(10))


# --- on the state machine ------------------------------------------------------------------------------------------


def sent(n: int, flow: int = 10) -> FastBatch:
    batch = FastBatch("b", flow)
    batch.add(np.arange(1, n + 1))
    batch.reply(FlowAck(0, flow), 1)
    return batch


def verdict(told: SettledTokens) -> tuple[list[int], dict[int, type[PublishError]]]:
    acked = [t for tokens in told.acked for t in tokens.tolist()]
    return acked, {t: type(error) for tokens, error in told.refused for t in tokens.tolist()}


def test_zero_count_partial_terminal_ack_allows_stream_sequence_zero() -> None:
    batch = sent(2)
    batch.reply(BatchRejection(1, from_reply(400, 10071, "rejected")), 1)
    assert verdict(batch.reply(PubAck("S", 0, batch="b", count=0), 1)) == (
        [],
        {1: ExpectationFailed, 2: BlockedByPredecessor},
    )


@each(
    "last",
    [
        PubAck("S", 1, batch="wrong", count=2), PubAck("S", 1, count=0), PubAck("S", 1, batch="b", count=99),
        from_reply(400, 10208, "unknown"), classify(Frame("MSG", 0, payload=b"not-json")),
    ],
)  # fmt: skip
@each("guilty", [False, True])
def test_terminal_ack_validation_rejects_untrusted_values(last: Reply, guilty: bool) -> None:
    """Also fatal_collector_rejects_an_already_pending_terminal_ack and ..._defensive_tail_paths: what was told before
    keeps its error."""
    batch = sent(3)
    if guilty:
        batch.reply(BatchRejection(2, from_reply(400, 10071, "rejected")), 2)
    acked, refused = verdict(batch.reply(last, 4))
    behind = {2: ExpectationFailed, 3: BlockedByPredecessor} if guilty else {2: OutcomeUnknown, 3: OutcomeUnknown}
    assert (acked, refused) == ([], {1: OutcomeUnknown, **behind})
    assert batch.phase is Phase.ENDED


@each(
    "payload",
    [
        b"\xff\xfe", b"[]", b'{"type":"new"}', b'{"type":"err","seq":2}', b'{"type":"err","seq":-1,"error":{}}',
        b'{"type":"ack","seq":true,"msgs":1}', b'{"type":"ack","seq":3,"msgs":1}', b'{"type":"ack","seq":2,"msgs":-1}',
        b'{"type":"gap","last_seq":-1,"seq":2}', b'{"type":"gap","last_seq":1,"seq":18446744073709551616}',
        b'{"stream":"S","seq":1,"batch":"","count":1}', b'{"stream":"S","seq":1,"batch":"b"}',
        b'{"stream":123,"seq":1,"batch":"b","count":2}', b'{"stream":"S","seq":"2","batch":"b","count":2}',
    ],
)  # fmt: skip
def test_malformed_inbox_responses_are_terminal(payload: bytes) -> None:
    """Whatever cannot be understood puts the batch in doubt, once."""
    batch = sent(2)
    acked, refused = verdict(batch.reply(classify(Frame("MSG", 0, payload=payload)), 2))
    assert (acked, refused) == ([], {1: OutcomeUnknown, 2: OutcomeUnknown})
    assert batch.phase is Phase.ENDED
    assert verdict(batch.reply(PubAck("S", 2, batch="b", count=2), 3)) == ([], {})


@each("msgs", [0, 65_536, 2**63])
def test_a_flow_that_no_server_means_changes_nothing_for_good(msgs: int) -> None:
    batch = sent(5)
    batch.reply(FlowAck(5, msgs), 5)
    assert 0 < batch.capacity() <= MAX_MESSAGES

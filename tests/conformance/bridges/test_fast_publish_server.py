"""The fast-ingest tests of nats-server (``TestJetStreamFastBatchPublish...``) by name: what the real server answers,
read by this package's own reader and settled by :class:`FastBatch`, message by message over a plain socket.

==========================================  ==========================================================================
Not here                                    Because
==========================================  ==========================================================================
MaxUint64SequenceRejected                   a batch ends at 100,000 (``test_a_batch_is_full_before_the_server_minds``)
SourceAndMirror                             what another stream copies is no matter of the publisher
DuplicatesCluster, Duplicates on R3         ``test_what_an_earlier_try_proposed_is_not_acknowledged_to_the_next_one...``
AccImportExport                             a publisher asks its own account's JetStream; an importing one has none
FlowControlOnLeaderChange                   ``test_a_leader_that_steps_down_in_flight_costs_nothing[batch in order]``
...AfterFailedCommitProposal                looks into the server's memory
GapOk..., and the ``ok`` half of others     gaps are never allowed here: a gap is a loss
PingCannotStartBatch                        nothing is pinged here: a batch is ended instead
BackwardSeq                                 no sequence is sent twice here
==========================================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from mama_spark.contracts.errors import (
    BlockedByPredecessor,
    ExpectationFailed,
    OutcomeUnknown,
    PublishError,
    RateLimited,
    Rejected,
    TooLarge,
)
from mama_spark.nats import error_codes
from mama_spark.nats.protocol.acks import BatchGap, BatchRejection, FlowAck, PubAck, Reply
from mama_spark.nats.protocol.fast_batch import END, START, FastBatch, Phase, parse_reply, reply_prefix, reply_suffix
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_servers import Admin
from tests.support.nats.plain_nats_connection import PlainNatsConnection

WRONG = {"Nats-Expected-Last-Sequence": "100"}
APPEND = 1


@dataclass
class Sent:
    """A batch as it goes over the wire, and what the state machine makes of the answers."""

    wire: PlainNatsConnection
    subject: str
    batch: FastBatch
    acked: list[int] = field(default_factory=list)
    refused: dict[int, type[PublishError]] = field(default_factory=dict)

    def put(self, n: int = 1, headers: dict[str, str] | None = None, *, skip: int = 0) -> None:
        """``n`` messages; of ``skip`` more in front of them the batch believes that they were sent."""
        for i in range(skip + n):
            seq = self.batch.add(np.array([self.batch.seq + 1]))
            if i >= skip:
                self.send(seq, START if seq == 1 else APPEND, headers)

    def send(self, seq: int, op: int, headers: dict[str, str] | None = None) -> None:
        reply = b"%s%d%s" % (reply_prefix(self.wire.inbox, self.batch.id, self.batch.flow), seq, reply_suffix(op))
        self.wire.publish(self.subject, reply, b"" if op == END else b"%d" % seq, headers)

    def end(self) -> None:
        self.send(self.batch.end(), END)

    def hear(self) -> Reply:
        while True:  # each message behind the end of an earlier batch is answered, too
            subject, reply = self.wire.answer()
            named = parse_reply(subject, self.wire.inbox)
            assert named is not None
            if named[0] == self.batch.id:
                break
        told = self.batch.reply(reply, named[1])
        self.acked += [t for tokens in told.acked for t in tokens.tolist()]
        self.refused |= {t: type(error) for tokens, error in told.refused for t in tokens.tolist()}
        return reply

    def hear_all(self) -> list[Reply]:
        """Until the batch is ended."""
        heard: list[Reply] = []
        while self.batch.phase is not Phase.ENDED:
            heard.append(self.hear())
        return heard


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[NatsServer]:
    with account(nats_accounts) as server:
        yield server


@pytest.fixture
def stream(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Stream]:
    name = request.node.name.partition("[")[0].upper()
    with Admin(server.url) as admin:
        admin.create_stream(name, [f"{name}.>"], allow_batched=True)
        made = Stream(admin, name, server.url)
        yield made
        made.close()


class Stream:
    """One of the test's own, which takes batches."""

    def __init__(self, admin: Admin, name: str, url: str) -> None:
        self.admin, self.name, self.wire = admin, name, PlainNatsConnection(url)
        self._wires = [self.wire]
        self._url = url

    def close(self) -> None:
        for one in self._wires:
            one.close()

    def another_wire(self) -> PlainNatsConnection:
        self._wires.append(PlainNatsConnection(self._url))
        return self._wires[-1]

    def batch(self, name: str = "uuid", flow: int = 10, wire: PlainNatsConnection | None = None) -> Sent:
        return Sent(wire or self.wire, f"{self.name}.a", FastBatch(name, flow))

    def stored(self) -> list[bytes]:
        return [m.payload for m in self.admin.messages(self.name)]


def code_of(reply: Reply) -> int:
    assert isinstance(reply, PublishError), reply
    return reply.code


def test_jetstream_fast_batch_publish(stream: Stream) -> None:
    stream.admin.update_stream(stream.name, allow_batched=False)
    off = stream.batch()
    off.put(2)
    assert code_of(off.hear()) == error_codes.NOT_BATCHED
    assert off.refused == {1: Rejected, 2: Rejected}
    assert off.wire.answer()[1].__class__ is Rejected, "every message is answered"
    stream.admin.update_stream(stream.name, allow_batched=True)

    for seq, op, name, code in [(0, START, "uuid", 10206), (1, END, "uuid", 10206), (1, START, "A" * 65, 10207),
                                (2, APPEND, "uuid", error_codes.UNKNOWN_BATCH)]:  # fmt: skip
        wrong = stream.batch(name)
        wrong.send(seq, op)
        assert code_of(wrong.wire.answer()[1]) == code

    good = stream.batch()
    good.put(5)
    good.end()
    first, last = good.hear_all()
    assert first == FlowAck(0, 10), "the first answer tells the flow and that the batch is known, not that it is stored"
    assert last == PubAck(stream.name, 5, batch="uuid", count=5)
    assert good.acked == [1, 2, 3, 4, 5]
    assert stream.stored() == [b"1", b"2", b"3", b"4", b"5"]


def test_jetstream_fast_batch_publish_gap_detection(stream: Stream) -> None:
    sent = stream.batch()
    sent.put()
    sent.put(skip=3)
    assert isinstance(sent.hear(), FlowAck)
    assert sent.hear() == BatchGap(expected=2, seq=5)
    assert not sent.acked, "a gap alone does not say what is stored"
    assert sent.hear() == PubAck(stream.name, 1, batch="uuid", count=1)
    assert sent.acked == [1]
    assert sent.refused == dict.fromkeys(range(2, 6), BlockedByPredecessor)
    assert stream.stored() == [b"1"]
    stream.wire.publish(f"{stream.name}.a", stream.wire.inbox + b"uuid2.10.unknown.1.0.$FI")
    assert code_of(stream.wire.answer()[1]) == 10206


def test_jetstream_fast_batch_publish_flow_control(stream: Stream) -> None:
    sent = stream.batch(flow=2)
    sent.put(5)
    assert [sent.hear() for _ in range(3)] == [FlowAck(0, 2), FlowAck(2, 2), FlowAck(4, 2)]
    assert sent.acked == [1, 2, 3, 4]
    sent.end()
    assert sent.hear() == PubAck(stream.name, 5, batch="uuid", count=5)
    assert sent.acked == [1, 2, 3, 4, 5]


def test_jetstream_fast_batch_init_ack_messages(stream: Stream) -> None:
    alone = stream.batch("b1", flow=1000)
    alone.put()
    assert alone.hear() == FlowAck(0, 500), "the only batch gets at most 500"
    second = stream.batch("b2", 1000, stream.another_wire())
    second.put()
    assert second.hear() == FlowAck(0, 1), "beside another one it begins with 1"
    assert second.batch.capacity() < alone.batch.capacity()
    for one in (alone, second):
        one.end()
        one.hear_all()
        assert one.acked == [1]
    small = stream.batch("b3", flow=50)
    small.put()
    assert small.hear() == FlowAck(0, 50)


def test_jetstream_fast_batch_publish_duplicates(stream: Stream) -> None:
    sent = stream.batch(flow=3)
    sent.put(1, {"Nats-Msg-Id": "msgId"})
    sent.end()
    sent.hear_all()
    again = stream.batch("again", flow=3)
    again.put(5, {"Nats-Msg-Id": "msgId"})
    again.end()
    heard = again.hear_all()
    assert FlowAck(3, 3) in heard
    last = heard[-1]
    assert isinstance(last, PubAck)
    assert (last.sequence, last.count) == (0, 5), "nothing of it was stored anew"
    assert again.acked == [1, 2, 3, 4, 5]
    assert stream.stored() == [b"1"]


def test_jetstream_fast_batch_publish_header_check_error(stream: Stream) -> None:
    sent = stream.batch()
    sent.put()
    sent.put(1, WRONG)
    sent.put(2)
    _, guilty, last = sent.hear_all()
    assert isinstance(guilty, BatchRejection)
    assert (guilty.seq, guilty.error.code) == (2, 10071)
    assert last == PubAck(stream.name, 1, batch="uuid", count=1)
    assert sent.acked == [1]
    assert sent.refused == {2: ExpectationFailed, 3: BlockedByPredecessor, 4: BlockedByPredecessor}
    assert stream.stored() == [b"1"]


def test_jetstream_fast_batch_publish_header_check_error_on_commit(stream: Stream) -> None:
    """The end carries no message here, so it is the last message that is refused, with the end already on its way."""
    sent = stream.batch()
    sent.put()
    sent.put(1, WRONG)
    sent.end()
    sent.hear_all()
    assert sent.acked == [1]
    assert sent.refused == {2: ExpectationFailed}
    following = stream.batch("next")
    following.put()
    following.end()
    assert following.hear_all()[-1] == PubAck(stream.name, 2, batch="next", count=1), "no batch is left behind"


def test_jetstream_fast_batch_publish_limits(tmp_path: Path) -> None:
    limits = 'limits { batch { max_inflight_per_stream: 1, timeout: "2s" } }'
    with NatsServer(tmp_path / "n", jetstream=limits) as server, Admin(server.url) as admin:
        admin.create_stream("S", ["S.>"], allow_batched=True)
        stream = Stream(admin, "S", server.url)
        longest = stream.batch("A" * 64)
        longest.put()
        longest.end()
        longest.hear_all()
        assert longest.acked == [1]

        idle = stream.batch("idle", flow=1)
        idle.put(2)
        while idle.acked != [1, 2]:
            idle.hear()
        other = stream.another_wire()
        denied = stream.batch("denied", wire=other)
        denied.put(2)
        denied.hear()
        assert denied.refused == {1: RateLimited, 2: RateLimited}, "again later, with a smaller window"

        def taken() -> bool:
            turn = stream.batch(f"turn{next(numbers)}", wire=other)
            turn.put()
            return isinstance(turn.hear(), FlowAck)

        numbers = count()
        eventually(taken, "the idle batch is forgotten")
        idle.put()
        assert code_of(idle.hear()) == error_codes.UNKNOWN_BATCH
        assert idle.refused == {3: OutcomeUnknown}, "only what no flow ack covered is in doubt"
        stream.close()


def test_a_message_that_is_refused_before_the_batch_sees_it_is_the_only_one_that_fails(stream: Stream) -> None:
    """Not in the server's own: the batch stays open without it, so the next message makes a gap."""
    stream.admin.update_stream(stream.name, max_msg_size=30)
    sent = stream.batch()
    sent.put(3)
    sent.put(1, {"X": "y" * 30})
    sent.put(2)
    heard = sent.hear_all()
    assert [type(reply) for reply in heard] == [FlowAck, TooLarge, BatchGap, PubAck]
    assert sent.acked == [1, 2, 3]
    assert sent.refused == {4: TooLarge, 5: BlockedByPredecessor, 6: BlockedByPredecessor}
    last = stream.batch("last")
    last.put()
    last.put(1, {"X": "y" * 30})
    assert [type(last.hear()) for _ in range(2)] == [FlowAck, TooLarge]
    assert last.batch.capacity() == 0
    last.end()
    last.hear_all()
    assert last.acked == [1]
    assert last.refused == {2: TooLarge}

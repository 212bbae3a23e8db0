"""The broker works in turns: what there is for one client, or of one stream, does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import decode, encode
from mama_spark.services.malamute_broker.broker.client_router import CLIENT_TURN, ClientRouter
from mama_spark.services.malamute_broker.broker.security import Security, ZapHandler
from mama_spark.services.malamute_broker.broker.broker import BrokerSettings
from mama_spark.services.malamute_broker.broker.traffic_counters import SocketCounters
from mama_spark.services.malamute_broker.engines import Delivery
from mama_spark.services.malamute_broker.engines.engine_actor import REPORT
from mama_spark.services.malamute_broker.engines.engine_handle import EngineHandle, ReportSocket
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine
from mama_spark.testing.waiting import eventually

MAIL = 3 * CLIENT_TURN + 1


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


class Clients:
    """A router whose sockets never block, and clients; the test executes each step."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        settings = BrokerSettings("tcp://127.0.0.1:*", SessionSettings(timeout=0.0), high_water=10 * MAIL)
        self.machine = ServerMachine(settings.machine)
        self.counters = SocketCounters()
        self.router = ClientRouter(context, settings, self.machine, self.counters)
        zap_handler = ZapHandler(context, Security())
        self.endpoint = self.router.bind(zap_handler)[0]
        zap_handler.stop()
        self.context = context
        self.peers: list[zmq.Socket[bytes]] = []

    def open(self, address: bytes) -> zmq.Socket[bytes]:
        peer = self.context.socket(zmq.DEALER)
        self.peers.append(peer)
        peer.set_hwm(10 * MAIL)
        peer.connect(self.endpoint)
        peer.send_multipart(encode(wire.Open(address)))
        eventually(lambda: self._read(address), "the broker has read OPEN")
        return peer

    def _read(self, address: bytes) -> bool:
        self.router.read_round(0.0)
        return address in self.machine.clients.by_address

    def close(self) -> None:
        self.router.close()
        for peer in self.peers:
            peer.close(0)

    def send(self) -> int:
        """Messages that one call sends."""
        before = self.counters.sent_messages
        self.router.send_output()
        return self.counters.sent_messages - before

    def retry(self) -> int:
        before = self.counters.sent_messages
        self.router.retry_blocked()
        return self.counters.sent_messages - before


def test_a_client_for_whom_there_is_much_gets_it_in_turns_and_in_order(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    clients = Clients(context)
    writer = clients.open(b"writer")
    (identity,) = clients.machine.clients.by_identity
    clients.send()
    for number in range(MAIL):
        clients.machine.receive(identity, encode(wire.MailboxSend(b"much", b"%d" % number, b"", 0)), 0.0)
    much = clients.open(b"much")
    clients.machine.receive(identity, encode(wire.Ping()), 0.0)
    assert clients.send() == CLIENT_TURN + 1, "a turn, and the PONG behind all that"
    assert decode(writer.recv_multipart()) == wire.Ok()
    assert decode(writer.recv_multipart()) == wire.Pong()
    assert [clients.retry() for _ in range(4)] == [CLIENT_TURN, CLIENT_TURN, MAIL + 1 - 3 * CLIENT_TURN, 0]
    assert decode(much.recv_multipart()) == wire.Ok()
    got = [decode(much.recv_multipart()) for _ in range(MAIL)]
    assert [one.subject for one in got if isinstance(one, wire.MailboxDeliver)] == [b"%d" % n for n in range(MAIL)]
    clients.close()


def test_clients_that_wait_have_their_turns_one_after_another(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    clients = Clients(context)
    clients.open(b"writer")
    (identity,) = clients.machine.clients.by_identity
    names = [b"a", b"b", b"c", b"d"]
    for name in names:
        for _ in range(2 * CLIENT_TURN):
            clients.machine.receive(identity, encode(wire.MailboxSend(name, b"", b"", 0)), 0.0)
        clients.open(name)
    clients.send()
    waiting = [list(clients.router.blocked)]
    for _ in range(3):
        clients.retry()
        waiting.append(list(clients.router.blocked))
    assert [[client.address for client in one] for one in waiting] == [names, [b"c", b"d", b"a", b"b"], names, []]
    clients.close()


def test_a_long_report_of_one_stream_does_not_come_before_a_short_one_of_another(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    reports = ReportSocket(context)
    with ExitStack() as engines:  # they end before their context does, whatever fails here
        engines.callback(reports.close)
        busy, other = EngineHandle(context, b"busy"), EngineHandle(context, b"other")
        for stream in (busy, other):
            engines.callback(stream.destroy)
            reports.add(stream)
            stream.compile("reader", b"")
            stream.flush()
        for _ in range(4):
            assert reports.take(30)  # the answers to TRAFFIC and COMPILE
        busy.compile("reader", b"^last")
        busy.flush()
        assert reports.take(30), "the socket goes on with this stream while it knows of no other"
        for number in range(4 * REPORT):
            busy.accept("writer", b"writer", b"%d" % number, [b""])
        busy.flush()
        eventually(lambda: len(busy.reports) == 4, "the engine has reported")
        other.accept("writer", b"writer", b"late", [b""])
        other.destroy()  # what it has reported is in the socket now
        taken = [one for _ in range(5) if (one := reports.take(30))]
        assert [stream for stream, _ in taken].index(other) <= 1, "the streams are taken in turn"
        of_busy = [report for stream, report in taken if stream is busy]
        assert [len(report) for report in of_busy] == [REPORT] * 4
        messages = [one.subject for report in of_busy for one in report if isinstance(one, Delivery)]
        assert messages == [b"%d" % number for number in range(4 * REPORT)]

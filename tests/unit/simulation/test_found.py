"""What seeds have found, as the shortest stories that show it."""

from __future__ import annotations

from mama_spark.contracts.bridge import EventKind
from mama_spark.contracts.errors import Unavailable
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings

from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.network import Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import StreamServer


def test_a_connection_that_was_lost_while_a_bridge_opened_says_nothing_of_the_next_one() -> None:
    told: list[EventKind] = []

    def task() -> None:
        bridge = NatsBridge(NatsSettings(("nats://nats:4222",), connect_timeout=1.0))
        try:
            bridge.open()
        except Unavailable:
            start()
            bridge.open()
        told.extend(event.kind for event in bridge.poll(1.0).events)
        bridge.close()

    with simulated(), Scheduler(1) as scheduler:
        network, there, jetstream = Network(scheduler), scheduler.host("nats"), JetStream()

        def start() -> None:
            scheduler.restart(there)
            ServerPort(network, there, StreamServer("nats", jetstream, lambda _: there.time()))

        start()
        scheduler.call_at(0.0034, lambda: scheduler.kill(there))  # it is asked whether JetStream is on
        scheduler.spawn("task", task, scheduler.host("executor"))
        scheduler.run()
        assert not scheduler.errors
    assert there.life == 2
    assert EventKind.DISCONNECTED not in told

"""A connection whose server comes and goes for a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized

from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.settings import NatsSettings

from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.network import Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import Outputs, StreamServer

DAY = 86_400
FICKLE = range(726, 729)  #: minutes in which the server ends each connection that has logged in


class FickleServer(StreamServer):
    """Counts logins by minute."""

    def __init__(self, logins: Counter[int]) -> None:
        super().__init__("nats", JetStream(), lambda now: now)
        self._logins = logins

    def received(self, number: int, data: bytes, now: float) -> Outputs:
        self._logins[minute := int(now // 60)] += data.startswith(b"CONNECT")
        return [*super().received(number, data, now), *([(number, None)] if minute in FICKLE else [])]


def tables(connection: SocketConnection) -> int:
    """Elements of all that a connection keeps."""
    driver, keepers = connection.driver, (connection.answers, connection.denials, connection.requests)
    found = [value for one in (connection, driver, driver.protocol, *keepers) for value in vars(one).values()]
    return sum(len(value) for value in found if isinstance(value, Sized) and not isinstance(value, str | bytes))


def test_a_day_of_reconnects_storms_no_server_and_keeps_nothing() -> None:
    logins, heard, kept = Counter[int](), list[Frame](), list[int]()

    def work() -> None:
        connection = SocketConnection(NatsSettings(("nats://nats",)))
        connection.open()
        connection.subscribe("a", heard.append, 5.0)
        kept.append(tables(connection))
        while scheduler.now < DAY:
            scheduler.sleep(5.0)
            connection.drive(0)
            while not connection.up:
                connection.drive(60.0, lambda: connection.up)
                heard.clear()
                connection.publish("a", b"")
                connection.drive(5.0, lambda: bool(heard) or not connection.up)
                assert heard or not connection.up, "subscriptions are made again"
        kept.append(tables(connection))

    with simulated(), Scheduler(24) as scheduler:
        network, here, there = Network(scheduler), scheduler.host("worker"), scheduler.host("nats")

        def start() -> None:
            scheduler.restart(there)
            ServerPort(network, there, FickleServer(logins))

        start()
        faults = [
            (lambda: scheduler.kill(there), start),
            (lambda: scheduler.freeze(there), lambda: scheduler.thaw(there)),
            (lambda: network.hold("nats", "worker"), lambda: network.release("nats", "worker")),
            (lambda: network.half_open("worker", "nats"), lambda: None),
        ]
        for n in range(1, 144):
            begin, end = faults[n % len(faults)]
            scheduler.call_at(600 * n, begin)
            scheduler.call_at(600 * n + scheduler.random.uniform(1, 60), end)
        scheduler.spawn("work", work, here)
        scheduler.run(DAY + 60)
        assert not scheduler.errors
        assert sum(end.host is here and not end.closed for end in network._ends) == 1, "descriptors"
    assert max(kept) < 8, "elements of tables"
    assert max(logins.pop(minute) for minute in FICKLE) <= 60 / 0.05, "a minute"
    assert 35 < sum(logins.values()) <= 143, "one a fault at most"

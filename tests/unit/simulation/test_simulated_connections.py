"""A connection to servers that are silent, away or slow, in virtual time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.nats.connection.pool import NatsPool
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream.client import JetStream
from mama_spark.nats.protocol.client import PING_INTERVAL
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.settings import NatsSettings

from tests.simulation import jetstream_api
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.network import End, Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import StreamServer

LONG = 60.0
#: The host ``nats`` has a server; on ``gone`` nothing listens.
SERVERS = ("nats://nats", "nats://gone")


class World:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.network, self.nats = scheduler, Network(scheduler), scheduler.host("nats")
        ServerPort(self.network, self.nats, StreamServer("nats", jetstream_api.JetStream(), lambda now: now))

    def silence(self, silent: bool = True) -> None:
        """Nothing arrives, either way."""
        for a, b in (("worker", "nats"), ("nats", "worker")):
            (self.network.hold if silent else self.network.release)(a, b)


def in_world(test: Callable[..., None]) -> Callable[..., None]:
    """Runs the test as a process of the host ``worker``; gives it a ``world``."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        with simulated(), Scheduler(40) as scheduler:
            world = World(scheduler)
            scheduler.spawn("test", lambda: test(world=world, **given), scheduler.host("worker"))
            scheduler.run(3_600)
            assert not scheduler.errors

    signature = inspect.signature(test)
    left = [one for one in signature.parameters.values() if one.name != "world"]
    run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return run


def opened(*servers: str, **options: Any) -> SocketConnection:
    connection = SocketConnection(NatsSettings(servers or SERVERS, **options))
    connection.open()
    return connection


def echoes(connection: SocketConnection) -> bool:
    """A message goes to the server and comes back."""
    got: list[Frame] = []
    sid = connection.subscribe("echo", got.append, LONG)
    connection.publish("echo", b"")
    connection.ping(LONG)
    connection.unsubscribe(sid)
    return len(got) == 1


@in_world
def test_a_request_that_was_lost_with_its_connection_is_not_waited_for(world: World) -> None:
    """Also where another thread has connected again meanwhile."""
    connection = opened()
    lost = connection.loss()
    assert not lost()
    world.network.cut("worker", "nats")
    connection.drive(LONG, lambda: not connection.up)
    connection.drive(LONG, lambda: connection.up)
    assert lost()
    assert not connection.loss()()


@pytest.mark.parametrize(
    ("subject", "ask"),
    [
        ("my.INFO", lambda api: api.request("INFO")["seq"]),
        ("s.a", lambda api: api.publish("s.a", b"x", {})),
        ("my.DIRECT.GET.S", lambda api: api.get("S", seq=7).sequence),
    ],
    ids=["request", "publish", "direct get"],
)
@in_world
def test_an_answer_counts_that_comes_when_the_request_was_sent_again(
    world: World, subject: str, ask: Callable[[JetStream], int]
) -> None:
    """The answers of a server that takes longer than an attempt."""
    headers = {"Nats-Sequence": "7", "Nats-Subject": "s.a", "Nats-Time-Stamp": "then"}
    asked, connection = list[bytes | None](), opened(js_api_prefix="my")

    def answer(request: Frame) -> None:
        asked.append(request.reply)
        if len(asked) == 2:
            assert asked[0] is not None
            connection.publish(asked[0].decode(), b'{"seq":7}', headers=headers)

    connection.subscribe(subject, answer, LONG)
    assert ask(JetStream(lambda: connection, 1.0, 0.1)) == 7
    assert len(set(asked)) == 2
    assert not len(connection.answers)


@in_world
def test_a_server_that_says_nothing_is_found_out_once(world: World) -> None:
    """By all connections of the process."""

    class Silent:
        taken = 0

        def accept(self, _: End) -> None:
            self.taken += 1

    world.network.listen(world.scheduler.host("silent"), silent := Silent())
    for _ in range(20):
        assert echoes(opened("nats://silent", "nats://nats", connect_timeout=LONG))
    assert silent.taken == 1


@pytest.mark.parametrize(("wrote", "looks"), [(False, int(PING_INTERVAL) + 6), (True, 7)])
@in_world
def test_a_way_that_says_nothing_any_more_is_left(world: World, wrote: bool, looks: int) -> None:
    """By who looks once a second. Who has written waits for an answer."""
    connection = opened()
    world.silence()
    if wrote:
        connection.publish("a", b"")
    for _ in range(looks):
        assert connection.up
        connection.drive(0)
        world.scheduler.sleep(1.0)
    assert not connection.up
    assert "no answer to a ping within 5 s" in connection.why_down
    world.silence(False)
    connection.drive(LONG, lambda: connection.up)
    assert echoes(connection)


@in_world
def test_a_connection_whose_server_another_one_has_left_is_not_given_out(world: World) -> None:
    settings, pool, first = NatsSettings(SERVERS), NatsPool(), opened()
    pool.give_back(settings, idle := pool.checkout(settings))
    world.silence()
    first.drive(LONG, lambda: not first.up)
    assert idle.up
    world.silence(False)
    another = pool.checkout(settings)
    assert another is not idle
    assert idle.closed
    assert echoes(another)


@in_world
def test_a_subscription_that_was_not_confirmed_in_time_is_not_there(world: World) -> None:
    """Who subscribes again would get all of it twice."""
    connection, got = opened(), list[Frame]()
    world.silence()
    with pytest.raises(Unavailable, match="did not answer"):
        connection.subscribe("a", got.append, 0.05)
    world.network.cut("worker", "nats")
    world.silence(False)
    connection.drive(LONG, lambda: not connection.up)
    with pytest.raises(Unavailable, match="not connected"):
        connection.subscribe("a", got.append, LONG)
    connection.drive(LONG, lambda: connection.up)
    connection.subscribe("a", got.append, LONG)
    connection.publish("a", b"")
    connection.ping(LONG)
    assert len(got) == 1


@in_world
def test_nothing_is_sent_on_a_connection_that_ended_while_nobody_drove_it(world: World) -> None:
    """Its outcome would be unknown, for nothing."""
    connection = opened()
    world.scheduler.kill(world.nats)
    world.scheduler.sleep(2.0)
    assert connection.up, "nobody has looked"
    connection.driver.catch_up()
    assert not connection.up

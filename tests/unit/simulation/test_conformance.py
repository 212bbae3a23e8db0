"""The simulated server passes the suite that every bridge passes over a real one: it does not drift from what it stands
for. Each test runs as a process of a simulation, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup

from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.nats.replicated import Cluster
from tests.simulation.network import Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import StreamServer, all_headers_of


def _run(function: Callable[[], Any]) -> Any:
    """As a process of the present simulation: its result, or its error."""
    scheduler, result = Scheduler.active, []
    assert scheduler is not None
    process = scheduler.spawn("test", lambda: result.append(function()), scheduler.host("tester"))
    scheduler.run(600.0, until=lambda: process.done)
    scheduler.errors.clear()
    if process.error is not None:
        raise process.error
    return result[0]


def _as_process(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **more: Any) -> None:
        _run(lambda: test(*args, **more))

    return run


@pytest.fixture(scope="module", autouse=True)
def product() -> Iterator[None]:
    """The product sees simulated modules."""
    with simulated():
        yield


class _Simulated(BridgeSuite):
    """:cvar options: of the bridge"""

    options: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        for name in dir(BridgeSuite):
            if name.startswith("test_"):
                setattr(cls, name, _as_process(getattr(BridgeSuite, name)))

    @pytest.fixture
    def site(self) -> Iterator[SuiteSetup]:
        with Scheduler(1) as scheduler:
            network = Network(scheduler)
            jetstream = self._server(scheduler, network)

            def make(**options: Any) -> NatsBridge:
                return NatsBridge(NatsSettings(("nats://n1:4222",), stream="T", **{**self.options, **options}))

            def stored() -> list[PublishedMessage]:
                messages = jetstream.streams["T"].messages.values()
                return [PublishedMessage(m.sequence, m.subject, m.payload, all_headers_of(m.block)) for m in messages]

            yield SuiteSetup(
                make=make,
                silent=lambda: make(ack_mode="none", ordered=False),
                refused={"Nats-Expected-Stream": ["OTHER"]},
                stored=stored,
            )

    def _server(self, scheduler: Scheduler, network: Network) -> JetStream:
        host, jetstream = scheduler.host("n1"), JetStream()
        jetstream.create("T", ["t.>"], host.time(), allow_batched=True)
        ServerPort(network, host, StreamServer("n1", jetstream, lambda _: host.time()))
        return jetstream

    @pytest.fixture
    def bridge(self, site: SuiteSetup) -> Iterator[Any]:
        bridge = site.make()
        _run(bridge.open)
        yield bridge
        _run(bridge.close)


class TestMessageMode(_Simulated):
    without, options = frozenset({"ordered"}), {}


class TestBatchMode(_Simulated):
    without, options = frozenset({"sequence", "ordered"}), {"ack_mode": "batch"}


class TestBatchModeInOrder(_Simulated):
    without, options = frozenset({"sequence"}), {"ack_mode": "batch", "ordered": True}


class TestReplicated(_Simulated):
    """Over three servers, of which another one leads than the one that is connected to."""

    without, options = frozenset({"ordered"}), {"ack_mode": "message"}

    def _server(self, scheduler: Scheduler, network: Network) -> JetStream:
        cluster = Cluster(scheduler, network, 0.001, 0.001)
        cluster.create({"name": "T", "subjects": ["t.>"]}, scheduler.host("n1").time(), leader="n2")
        return cluster.nodes["n2"].jetstream

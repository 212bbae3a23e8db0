"""The simulated servers pass the suites that bridges and logs pass over real ones, and do not drift from these. Tests
run as processes of a simulation, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLogBridge
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.testing.bridge_suite import BridgeSuite, PublishedMessage, SuiteSetup, publish
from mama_spark.testing.log_suite import LogSetup, LogSuite

from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.nats.replicated import Cluster
from tests.simulation.network import Network
from tests.simulation.sockets import ServerPort
from tests.simulation.stream_server import StreamServer, all_headers_of

_SERVERS = ("nats://n1:4222",)


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


class _Simulated:
    """Tests of a suite, each of which runs as a process."""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            if name.startswith("test_") and not hasattr(test := getattr(cls, name), "__wrapped__"):
                setattr(cls, name, _as_process(test))

    @pytest.fixture
    def jetstream(self) -> Iterator[JetStream]:
        with Scheduler(1) as scheduler:
            yield self._server(scheduler, Network(scheduler))

    def _server(self, scheduler: Scheduler, network: Network) -> JetStream:
        host, jetstream = scheduler.host("n1"), JetStream()
        jetstream.create("T", ["t.>"], host.time(), allow_batched=True)
        ServerPort(network, host, StreamServer("n1", jetstream, lambda _: host.time()))
        return jetstream

    @pytest.fixture
    def bridge(self, site: Any) -> Iterator[Any]:
        bridge = site.make()
        _run(bridge.open)
        yield bridge
        _run(bridge.close)


class _Bridge(_Simulated, BridgeSuite):
    """:cvar options: of the bridge"""

    options: ClassVar[dict[str, Any]]

    @pytest.fixture
    def site(self, jetstream: JetStream) -> SuiteSetup:
        def make(**options: Any) -> NatsBridge:
            return NatsBridge(NatsSettings(_SERVERS, stream="T", **{**self.options, **options}))

        def stored() -> list[PublishedMessage]:
            messages = jetstream.streams["T"].messages.values()
            return [PublishedMessage(m.sequence, m.subject, m.payload, all_headers_of(m.block)) for m in messages]

        return SuiteSetup(
            make=make,
            silent=lambda: make(ack_mode="none", ordered=False),
            refused={"Nats-Expected-Stream": ["OTHER"]},
            stored=stored,
        )


class TestMessageMode(_Bridge):
    without, options = frozenset({"ordered"}), {}


class TestBatchMode(_Bridge):
    without, options = frozenset({"sequence", "ordered"}), {"ack_mode": "batch"}


class TestBatchModeInOrder(_Bridge):
    without, options = frozenset({"sequence"}), {"ack_mode": "batch", "ordered": True}


class TestReplicated(_Bridge):
    """Over three servers, of which another one leads than the one that is connected to."""

    without, options = frozenset({"ordered"}), {"ack_mode": "message"}

    def _server(self, scheduler: Scheduler, network: Network) -> JetStream:
        cluster = Cluster(scheduler, network, 0.001, 0.001)
        cluster.create({"name": "T", "subjects": ["t.>"]}, scheduler.host("n1").time(), leader="n2")
        return cluster.nodes["n2"].jetstream


class TestLogs(_Simulated, LogSuite):
    @pytest.fixture
    def log(self, site: LogSetup, bridge: RecordLogBridge) -> Any:
        return _run(lambda: bridge.log(site.name))

    @pytest.fixture
    def site(self, jetstream: JetStream) -> LogSetup:
        def make() -> NatsLogs:
            return NatsLogs(NatsSettings(_SERVERS), 60.0)

        def fill(batch: MessageBatch) -> None:
            bridge = NatsBridge(NatsSettings(_SERVERS, stream="T", ack_mode="batch", dedup=False))
            bridge.open()
            publish(bridge, batch)
            bridge.close()

        def delete(sequences: Sequence[int]) -> None:
            logs = make()
            logs.open()
            logs.log("T").delete(sequences)
            logs.close()

        return LogSetup(make=make, name="T", fill=fill, delete=delete)

"""The bridge `malamute` through our own broker with the simple engine, and through one that announces nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mama_spark.contracts.bridge import Ack
from mama_spark.contracts.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge import MalamuteBridge, MalamuteDiscovery, MalamuteLogs, MalamuteSettings
from mama_spark.malamute.bridge.pool import POOL
from mama_spark.malamute.broker.broker.broker import Broker, EngineChoice
from mama_spark.malamute.broker.engines import register
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome
from mama_spark.options import SinkOptions
from mama_spark.registry import discovery_bridge, log_bridge, publisher_bridge
from mama_spark.testing.bridge_suite import TIMEOUT, BridgeSuite, PublishedMessage, SuiteSetup, publish

from tests.support.malamute.malamute_clients import start


class NumberedEngine(SimpleEngine):
    """Numbers messages, and refuses some."""

    stored = True

    def __init__(self, name: bytes, settings: Any = None) -> None:
        super().__init__(name, settings)
        self.last = 0
        self.runs: list[AckRun] = []

    def accept(self, client: Any, address: bytes, subject: bytes, content: Any, extension: Any = None) -> None:
        if subject == b"full":
            self.runs.append(AckRun(StoreOutcome.REFUSED, 1))
            return
        self.last += 1
        self.runs.append(AckRun(StoreOutcome.STORED, 1, self.last))
        super().accept(client, address, subject, content, extension)

    def sync(self, client: Any) -> tuple[AckRun, ...]:
        runs, self.runs = tuple(self.runs), []
        return runs


register("numbered-for-tests", NumberedEngine)


NUMBERED = (EngineChoice(b"^numbered", "numbered-for-tests"),)


@contextmanager
def serving(engines: tuple[EngineChoice, ...] = NUMBERED, **machine: Any) -> Iterator[Broker]:
    broker = start("", engines, **machine)
    try:
        yield broker
    finally:
        broker.stop()


class OracleClient:
    """The oracle: a client that was there before."""

    def __init__(self, url: str, stream: str) -> None:
        self.client = MalamuteClient(url, timeout=TIMEOUT, window=None).open()
        self.client.read(stream)
        self.marker = MalamuteClient(url, "marker", timeout=TIMEOUT).open()
        self.marker.write(stream)
        self.stored: list[PublishedMessage] = []

    def all(self) -> list[PublishedMessage]:
        """What came before a message that is sent now."""
        self.marker.send("marker")
        while (m := self.client.receive()).sender != "marker":
            headers: dict[str, list[str]] = {}
            for name, value in m.headers:
                headers.setdefault(name, []).append(value)
            number = m.sequence or len(self.stored) + 1
            self.stored.append(PublishedMessage(number, m.subject, b"".join(m.content), headers))
        return self.stored

    def close(self) -> None:
        self.client.close()
        self.marker.close()


@pytest.fixture(autouse=True)
def _nothing_stays_warm() -> Iterator[None]:
    yield
    POOL.clear()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with serving() as broker:
        yield broker


@pytest.fixture
def reader(broker: Broker) -> Iterator[Callable[[str], OracleClient]]:
    made: list[OracleClient] = []

    def make(stream: str) -> OracleClient:
        made.append(OracleClient(broker.endpoint, stream))
        return made[-1]

    yield make
    for one in made:
        one.close()


def bridge_of(url: str, stream: str = "st", **values: Any) -> MalamuteBridge:
    features = values.pop("features", Feature.SEQUENCE | Feature.ACKS | Feature.HEADERS)
    return MalamuteBridge(MalamuteSettings(ConnectionSettings((url,), features=features), stream, **values))


class _StreamSuite(BridgeSuite):
    """Of one stream.

    :cvar ack: what its acknowledgements mean
    """

    stream: ClassVar[str]
    ack: ClassVar[Ack]

    @pytest.fixture
    def site(self, broker: Broker, reader: Any) -> SuiteSetup:
        return SuiteSetup(
            make=lambda: bridge_of(broker.endpoint, self.stream),
            silent=lambda: bridge_of(broker.endpoint, self.stream, acks=False),
            stored=reader(self.stream).all,
        )

    def test_it_says_what_an_acknowledgement_means(self, bridge: MalamuteBridge) -> None:
        assert bridge.capabilities.ack is self.ack


class TestMemoryStream(_StreamSuite):
    without, stream, ack = frozenset({"sequence", "dedup", "ordered"}), "st", Ack.ACCEPTED


@pytest.mark.spec("ML-22", "ML-26")
def test_a_stored_stream_says_stored_and_what_is_refused(broker: Broker) -> None:
    bridge = bridge_of(broker.endpoint, "numbered")
    bridge.open()
    able = bridge.capabilities
    assert (able.ack, able.sequence, able.dedup, able.headers) == (Ack.STORED, True, True, True)
    answers = publish(bridge, MessageBatch.of(["a", "full", "full", "b"], [b""] * 4))
    bridge.close()
    assert answers.sequence == {0: 1, 3: 2}
    assert sorted(answers.error) == [1, 2]
    assert all(error.retryable and not error.may_have_landed for error in answers.error.values())


class TestForeignBroker(_StreamSuite):
    """A broker that does not announce our extensions: the PONG of a PING behind each chunk says ``accepted``."""

    without = frozenset({"sequence", "dedup", "headers", "ordered"})
    stream, ack = "numbered", Ack.ACCEPTED

    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        with serving(features=Feature(0)) as broker:
            yield broker

    def test_it_carries_no_ids(self, site: SuiteSetup, bridge: MalamuteBridge) -> None:
        answers = publish(bridge, MessageBatch.of(["t"] * 2, [b"1", b"2"], None, ["same", "same"]))
        assert set(answers.sequence.values()) == {-1}
        assert len(site.stored()) == 2


def test_nothing_is_opened_when_the_parts_of_the_bridge_are_made() -> None:
    """Law 10: there is no broker at this address, and nobody looks for one."""
    o = SinkOptions.parse({"url": "mlp://127.0.0.1:1/s"})
    assert isinstance(discovery_bridge(o), MalamuteDiscovery)
    assert isinstance(log_bridge(o, 1.0), MalamuteLogs)
    assert isinstance(publisher_bridge(o), MalamuteBridge)
    assert "closed" in repr(publisher_bridge(o))


def test_what_cannot_be_opened_says_why(broker: Broker) -> None:
    bridge = bridge_of("mlp://127.0.0.1:1", connect_timeout=0.7)
    with pytest.raises(Unavailable, match="nobody listens there"):
        bridge.open()
    bridge.close()
    bridge = MalamuteBridge(replace(bridge_of(broker.endpoint).settings, stream=None))
    bridge.open()
    with pytest.raises(ConfigError, match="no stream is named"):
        bridge.prepare(MessageBatch.of(["t"], [b""]))
    bridge.close()
    with pytest.raises(ClientClosed, match="not open"):
        bridge_of(broker.endpoint).send(MessageBatch.of(["t"], [b""]), 0)


def test_a_stream_that_the_broker_refuses_is_the_users_to_change() -> None:
    with serving(streams=1) as broker:
        first = bridge_of(broker.endpoint, "one")
        first.open()
        with pytest.raises(ConfigError, match="too many streams"):
            bridge_of(broker.endpoint, "two").open()
        first.close()


class TestDurableStream(_StreamSuite):
    """The same on a real store: sequences, ids stored once, headers read back."""

    without, stream, ack = frozenset({"ordered"}), "kept", Ack.STORED

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[Broker]:
        with serving(engines=(EngineChoice(b"", "durable", {"folder": str(tmp_path)}),)) as broker:
            yield broker

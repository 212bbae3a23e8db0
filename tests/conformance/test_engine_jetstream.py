"""The engine over NATS JetStream passes the suite for engines, with a real server, driven as the broker drives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.bridges.nats import link
from mama_spark.bridges.nats.pool import POOL
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.malamute.engines import jetstream
from mama_spark.testing.engine_suite import EngineKind, EngineSuite


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    folder: Path = tmp_path_factory.mktemp("nats")
    with NatsServer(folder, config="max_payload: 8MB") as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow and not away is waited for."""
    monkeypatch.setattr(jetstream, "BARRIER", 60.0)


class TestJetStream(EngineSuite):
    @pytest.fixture
    def kind(self, server: NatsServer, request: pytest.FixtureRequest) -> EngineKind:
        mark = f"{type(self).__name__}-{request.node.name}"  # one server serves all tests, each with its own streams
        settings = {"servers": server.url, "stream": mark + "-{stream}", "subjects": mark + ".{stream}"}
        return EngineKind("jetstream", settings, stored=True)


class TestJetStreamByPublicCalls(TestJetStream):
    """With a version of nats-py whose inside is not known."""

    @pytest.fixture(autouse=True)
    def _plain(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(link, "supported", lambda client: False)
        POOL.clear()
        yield
        POOL.clear()

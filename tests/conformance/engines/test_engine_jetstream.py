"""The engine over NATS JetStream passes the suite for engines, with a real server, driven as the broker drives it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from mama_spark.malamute.broker.engines.jetstream import engine
from mama_spark.malamute.testing.engine_suite import EngineKind, ReadableEngineSuite

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts, SharedNatsServer


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[SharedNatsServer]:
    with account(nats_accounts, config="max_payload: 16MB") as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow and not away is waited for."""
    monkeypatch.setattr(engine, "BARRIER", 60.0)


class InJetStream:
    @pytest.fixture
    def kind(self, server: SharedNatsServer, request: pytest.FixtureRequest) -> EngineKind:
        # one server serves all tests, each with its own streams
        mark = re.sub(r"\W", "-", f"{type(self).__name__}-{request.node.name}")
        settings = {"servers": server.url, "stream": mark + "-{stream}", "subjects": mark + ".{stream}"}
        return EngineKind("jetstream", settings, stored=True)


class TestJetStream(InJetStream, ReadableEngineSuite):
    pass

"""The logs against the suite that every log must pass: in memory, and JetStream on a real server by both ways in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from uuid import uuid4

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.log_suite import LogSetup, LogSuite

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_servers import Admin


class TestMemoryLogs(LogSuite):
    @pytest.fixture
    def site(self) -> Iterator[LogSetup]:
        name = uuid4().hex
        broker = MemoryBroker.get(name)

        def fill(batch: MessageBatch) -> None:
            bridge = MemoryBridge(name)
            bridge.open()
            publish(bridge, batch)

        yield LogSetup(make=lambda: MemoryLogs(name), name=name, fill=fill, delete=broker.delete)
        MemoryBroker.forget(name)


@pytest.fixture(scope="module")
def server(nats_accounts: Accounts) -> Iterator[NatsServer]:
    with account(nats_accounts) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(server.url) as admin:
        yield admin


_numbers = count()


class TestNatsLogs(LogSuite):
    @pytest.fixture
    def site(self, server: NatsServer, admin: Admin) -> Iterator[LogSetup]:
        name = f"T{next(_numbers)}"  # not one name again and again: a deleted stream's files go a little later
        admin.create_stream(name, [f"{name}.>"])

        def fill(batch: MessageBatch) -> None:
            bridge = NatsBridge(NatsSettings((server.url,), stream=name, dedup=False))
            bridge.open()
            publish(bridge, batch)
            bridge.close()

        def delete(sequences: Sequence[int]) -> None:
            for sequence in sequences:
                assert admin.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})["success"]

        yield LogSetup(
            make=lambda: NatsLogs(NatsSettings((server.url,)), 60.0),
            name=name,
            fill=fill,
            delete=delete,
            root=name,
        )
        assert admin.api(f"STREAM.DELETE.{name}")["success"]

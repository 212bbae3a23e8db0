"""A server with streams to be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_log import _names, fill
from tests.support.nats.nats_servers import Admin


@pytest.fixture(scope="module")
def shared(nats_accounts: Accounts) -> Iterator[NatsServer]:
    """A server for tests that leave it running."""
    with account(nats_accounts, config="max_payload: 9MB") as server:
        yield server


@pytest.fixture(scope="module")
def admin(shared: NatsServer) -> Iterator[Admin]:
    with Admin(shared.url) as admin:
        yield admin


@pytest.fixture
def name(admin: Admin) -> Iterator[str]:
    """An empty stream of this test's own, which takes what lies below its name."""
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"])
    yield name
    admin.api(f"STREAM.DELETE.{name}")


@pytest.fixture(scope="module")
def full(shared: NatsServer, admin: Admin) -> str:
    """A stream with :data:`MANY` records, only to be read."""
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"])
    fill(shared.url, name)
    return name

"""A client of the test's server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as admin:
        yield admin

"""The log of a recorder, for every test of this folder that names none of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.tango_processes.recorder import RecorderLog


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[RecorderLog]:
    with RestartableNatsServer(nats_server) as room:
        yield RecorderLog(room)

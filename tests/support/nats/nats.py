"""NATS servers for tests: a plugin, named in ``tests/conftest.py``.

``nats_server`` and ``nats_cluster`` are accounts of servers that all tests of the process share. A test that stops,
pauses, fills or configures a server, or reads its counters, is marked ``own_server``: then ``nats_server``, and what is
made with it, is a server that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_accounts import Accounts, SharedNatsCluster, SharedNatsServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_server(config, jetstream): nats_server is a server that no other test uses")


@pytest.fixture(scope="session")
def nats_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    """For fixtures of a wider scope than a test, and for servers with another configuration; see :func:`account`."""
    accounts = Accounts(tmp_path_factory.mktemp("nats"))
    yield accounts
    accounts.close()


@contextmanager
def account(accounts: Accounts, *, config: str = "", jetstream: str = "") -> Iterator[SharedNatsServer]:
    """A new account, emptied in the end, on the process's server with this configuration."""
    server = accounts.take(config=config, jetstream=jetstream)
    try:
        yield server
    finally:
        accounts.give_back(server.account)


@pytest.fixture
def nats_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """Without streams: a new account of the shared server, or of a server of its own where the test is marked so."""
    mark = request.node.get_closest_marker("own_server")
    if mark is not None:
        with NatsServer(tmp_path / "nats", **mark.kwargs) as own:
            yield own
        return
    with account(request.getfixturevalue("nats_accounts")) as server:
        yield server


@pytest.fixture
def nats_cluster(nats_accounts: Accounts) -> Iterator[SharedNatsCluster]:
    """A new account of the shared cluster of three servers, without streams."""
    cluster = nats_accounts.take_cluster()
    yield cluster
    nats_accounts.give_back(cluster.account)

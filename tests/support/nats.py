"""NATS servers for tests: a plugin, named in ``tests/conftest.py``.

``nats_server`` and ``nats_cluster`` are accounts of servers that all tests of the process share. A test that stops,
pauses, fills or configures a server, or reads its counters, takes ``own_server``, which nobody else uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.accounts import Accounts, SharedCluster, SharedServer


@pytest.fixture(scope="session")
def nats_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    """For fixtures of a wider scope than a test, and for servers with another configuration; see :func:`account`."""
    accounts = Accounts(tmp_path_factory.mktemp("nats"))
    yield accounts
    accounts.close()


@contextmanager
def account(accounts: Accounts, *, config: str = "", jetstream: str = "") -> Iterator[SharedServer]:
    """A new account, emptied in the end, on the process's server with this configuration."""
    server = accounts.take(config=config, jetstream=jetstream)
    try:
        yield server
    finally:
        accounts.give_back(server.account)


@pytest.fixture
def nats_server(nats_accounts: Accounts) -> Iterator[SharedServer]:
    """A new account of the shared server, without streams."""
    with account(nats_accounts) as server:
        yield server


@pytest.fixture
def nats_cluster(nats_accounts: Accounts) -> Iterator[SharedCluster]:
    """A new account of the shared cluster of three servers, without streams."""
    cluster = nats_accounts.take_cluster()
    yield cluster
    nats_accounts.give_back(cluster.nodes[0].account)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test's own, without streams."""
    with NatsServer(tmp_path / "nats") as server:
        yield server

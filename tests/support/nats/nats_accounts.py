"""NATS servers that many tests share: each has an account, and with it streams, subjects and advisories of its own.

Fixtures over this are in ``tests/support/nats/nats.py``.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import orjson
from mama_spark.discovery import lease_keeper
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.plain_nats_connection import PlainNatsConnection

_PASSWORD = "p"
#: Accounts of a server: each takes it some milliseconds to set up.
_AT_ONCE = 64
_SYSTEM = "sys"


def _configuration(names: list[str], config: str) -> str:
    users = [f"{n}: {{ jetstream: enabled, users: [ {{user: {n}, password: {_PASSWORD}}} ] }}" for n in names]
    system = f"$SYS: {{ users: [ {{user: {_SYSTEM}, password: {_PASSWORD}}} ] }}"
    return "accounts {\n" + "\n".join([system, *users]) + f"\n}}\n{config}"


def _with_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}:{_PASSWORD}@")


class SharedNatsServer(NatsServer):
    """An account of a running server, as if it were a server; nobody can end it, pause it or start it.

    :ivar account: its name; pages of the monitoring port tell of all accounts
    """

    def __init__(self, server: NatsServer, account: str) -> None:
        super().__init__(server.folder, store=server.store, name=server.name)
        self.account, self.port, self.monitor, self._server = account, server.port, server.monitor, server

    @property
    def url(self) -> str:
        """With the user of the account."""
        return _with_user(self._server.url, self.account)

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.running

    def spawn(self) -> Never:
        raise AssertionError("other tests use this server: mark the test own_server to stop or start one")

    def _signal(self, number: signal.Signals) -> Never:
        self.spawn()

    def _end(self, number: signal.Signals) -> Never:
        self.spawn()


class SharedNatsCluster(Cluster):
    """An account of a running cluster, as if it were a cluster; its nodes are shared servers.

    :ivar account: its name
    """

    def __init__(self, cluster: Cluster, account: str) -> None:
        super().__init__(cluster.folder, cluster.size)
        self.account = account
        self.nodes = [SharedNatsServer(node, account) for node in cluster.nodes]


@dataclass
class _ServerPool:
    """A server or cluster and the accounts in it.

    :ivar free: accounts that nobody has had
    :ivar taken: how many are in use
    """

    running: NatsServer | Cluster
    free: list[str]
    taken: int = 0

    def system(self, call: str) -> dict[str, Any]:
        """A call of the JetStream API of the system account."""
        url = self.running.url.split(",")[0]
        with PlainNatsConnection(_with_user(url, _SYSTEM)) as wire:
            wire.publish(f"$JS.API.{call}", wire.inbox + b"1")
            answer: dict[str, Any] = orjson.loads(wire.message().payload)
            return answer


@dataclass
class Accounts:
    """Accounts that nobody had before, on servers that are started when they are needed.

    :param folder: for the servers
    """

    folder: Path
    _houses: dict[tuple[str, str, int], _ServerPool] = field(default_factory=dict)
    _homes: dict[str, _ServerPool] = field(default_factory=dict)
    _started: int = 0

    def take(self, *, config: str = "", jetstream: str = "") -> SharedNatsServer:
        """An account of the server with this configuration.

        :param config: see :class:`NatsServer`; nothing about accounts, users or ports
        :param jetstream: see :class:`NatsServer`
        """
        house, name = self._place(config, jetstream, 0)
        assert isinstance(house.running, NatsServer)
        return SharedNatsServer(house.running, name)

    def take_cluster(self) -> SharedNatsCluster:
        """An account of a cluster of three servers."""
        house, name = self._place("", "", 3)
        assert isinstance(house.running, Cluster)
        return SharedNatsCluster(house.running, name)

    def _place(self, config: str, jetstream: str, nodes: int) -> tuple[_ServerPool, str]:
        key = (config, jetstream, nodes)
        house = self._houses.get(key)
        if house is None or not house.free:
            if house is not None and not house.taken:
                house.running.stop()
            house = self._houses[key] = self._start(*key)
        name = house.free.pop()
        house.taken += 1
        self._homes[name] = house
        return house, name

    def _start(self, config: str, jetstream: str, nodes: int) -> _ServerPool:
        self._started += 1
        prefix, count = f"s{self._started}", 16 if nodes else _AT_ONCE
        names = [f"{prefix}t{i}" for i in range(count)]
        text, folder = _configuration(names, config), self.folder / prefix
        if nodes:
            return _ServerPool(Cluster(folder, nodes, config=text, jetstream=jetstream).start(), names)
        return _ServerPool(NatsServer(folder, config=text, jetstream=jetstream).start(), names)

    def give_back(self, account: str) -> None:
        """Delete all that it holds. This process gives up its connections first, and announces nothing any more."""
        lease_keeper.clear()
        POOL.clear()
        house = self._homes.pop(account)
        house.taken -= 1
        if house not in self._houses.values() and not house.taken:
            house.running.stop()
            return
        answer = house.system(f"ACCOUNT.PURGE.{account}")
        assert answer.get("initiated"), answer

    def close(self) -> None:
        """End all servers."""
        for house in {id(h): h for h in [*self._houses.values(), *self._homes.values()]}.values():
            house.running.stop()

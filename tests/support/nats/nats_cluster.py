"""A cluster of real servers whose nodes are killed and started again at their place."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mama_spark.contracts.errors import Unavailable
from mama_spark.nats.server.nats_server import READY_TIMEOUT, NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port


def await_replicas(admin: Admin, stream: str) -> None:
    """Wait until each replica of a stream has joined it and lacks nothing: one killed before may elect nobody."""

    def joined() -> bool:
        cluster = admin.info(stream).get("cluster", {})
        replicas = cluster.get("replicas") or ()
        return bool(cluster.get("leader") and replicas) and all(r["current"] and not r.get("lag") for r in replicas)

    eventually(joined, "all replicas have what the stream has")


class Cluster:
    """``size`` servers on loopback with JetStream over all of them. Their ports stay theirs while they are down.
    Each has its name as a tag, by which a stream can be placed there.

    :param folder: one folder a node below it
    """

    def __init__(self, folder: Path | str, size: int = 3, *, config: str = "", jetstream: str = "") -> None:
        self.folder, self.size = Path(folder), size
        self._config, self._jetstream = config, jetstream
        self.nodes: list[NatsServer] = []

    @property
    def url(self) -> str:
        """URLs of all nodes, separated by commas."""
        return ",".join(node.url for node in self.nodes)

    def node(self, name: str) -> NatsServer:
        return next(n for n in self.nodes if n.name == name)

    def start(self, timeout: float = 2 * READY_TIMEOUT) -> Self:
        """Start all and wait until they elected a leader.

        :raises Unavailable: not ready in time
        """
        routes = [lasting_port() for _ in range(self.size)]
        self.nodes = [self._make(i, routes) for i in range(self.size)]
        try:
            for node in self.nodes:
                node.spawn()
            for node in self.nodes:
                node.wait_ready(timeout)
            self._wait_leader(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def _make(self, i: int, routes: list[int]) -> NatsServer:
        urls = ", ".join(f'"nats://127.0.0.1:{p}"' for p in routes)
        cluster = f'cluster {{\n  name: mama\n  listen: "127.0.0.1:{routes[i]}"\n  routes: [{urls}]\n}}'
        name = f"n{i + 1}"
        text = f'{cluster}\nserver_tags: ["{name}"]\n{self._config}'
        return NatsServer(self.folder / name, port=lasting_port(), name=name, config=text, jetstream=self._jetstream)

    def _wait_leader(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                meta = [node.ask("jsz").get("meta_cluster", {}) for node in self.nodes]
                if all(m.get("leader") and m.get("cluster_size") == self.size for m in meta):
                    return
            except (OSError, ValueError):
                pass  # a node that has not opened its monitoring port yet
            if time.monotonic() > deadline:
                raise Unavailable(f"the cluster elected no leader within {timeout:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()  # the store of a cluster is not needed again

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

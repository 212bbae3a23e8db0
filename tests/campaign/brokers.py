"""The brokers of a round: each behind proxies, each can be killed, paused, and have its disk filled."""

from __future__ import annotations

import contextlib
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.campaign.configurations import STREAM
from tests.campaign.oracle import StoredMessage, read_nats, read_sqlite
from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

SUBJECTS = ["campaign.>"]


class BrokerServer(Protocol):
    """What faults strike."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def start(self) -> object: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class CampaignBroker(ABC):
    """Ready inside of ``with``; the stream is there.

    :ivar server: (the leader, where there are several)
    :ivar proxies: ways to the servers, one each
    :ivar heals: stores again when its disk has room again; else it has to be restarted
    """

    heals = False
    server: BrokerServer

    def __init__(self) -> None:
        self.proxies: list[Proxy] = []
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            for url in self._serve(exits):
                self.proxies.append(exits.enter_context(Proxy(url)))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @abstractmethod
    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        """Start; the URLs of the servers."""

    @property
    def url(self) -> str:
        """Option ``url``, through the proxies."""
        return ",".join(proxy.url for proxy in self.proxies)

    @property
    def ports(self) -> list[int]:
        """Where clients connect to: the proxies, and servers that tell clients their own address."""
        return [proxy.port for proxy in self.proxies]

    @abstractmethod
    def messages(self) -> list[StoredMessage]:
        """All that is stored, in order, as the oracle reads it."""

    @abstractmethod
    def store(self) -> Path:
        """Folder of the server's files."""

    def fill_disk(self, more: int) -> None:
        """Files may grow by ``more`` bytes beyond the largest there is now."""
        self._limit(largest_file(self.store()) + more)

    def free_disk(self) -> None:
        """No limit any more; what does not recover by itself is restarted."""
        self._limit(resource.RLIM_INFINITY)
        if not self.heals:
            self.server.kill()
            self.server.start()

    def _limit(self, size: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (size, hard))


def largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # just removed
            sizes.append(path.stat().st_size)
    return max(sizes)


class SingleNats(CampaignBroker):
    def __init__(self, folder: Path, id_window: float) -> None:
        super().__init__()
        self.server: NatsServer = NatsServer(folder)
        self._window = int(id_window * 1e9)

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.server)
        with Admin(self.server.url) as admin:
            admin.create_stream(STREAM, SUBJECTS, allow_batched=True, duplicate_window=self._window)
        return [self.server.url]

    def messages(self) -> list[StoredMessage]:
        return read_nats([self.server.url], STREAM)

    def store(self) -> Path:
        return self.server.store


class Leader:
    """The leader of a stream of a cluster: the same server from a fault on until it goes on.

    :ivar stream: once there is one
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.stream = cluster, ""
        self._struck: NatsServer | None = None

    @property
    def server(self) -> NatsServer:
        if self._struck is None:
            with Admin(self.cluster.url) as admin:
                name = eventually(lambda: admin.info(self.stream)["cluster"].get("leader"), "a leader")
            self._struck = self.cluster.node(str(name))
        return self._struck

    @property
    def pid(self) -> int:
        return self.server.pid

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()
        self._struck = None

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()
        self._struck = None

    def create(self, stream: str, subjects: list[str], window: int) -> None:
        """A stream on all servers, which takes batches.

        :param window: nanoseconds, for ids
        """
        config = {"name": stream, "subjects": subjects, "num_replicas": 3, "storage": "file", "allow_batched": True}
        config["duplicate_window"] = window
        with Admin(self.cluster.url) as admin:
            eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{stream}", config), "three peers are known")
            eventually(lambda: admin.info(stream)["cluster"].get("leader"), "a leader")
        self.stream = stream


def _last_stored(node: NatsServer) -> tuple[int, ...]:
    """Last sequence of the stream in the server's own store; empty while it has not loaded it."""
    accounts = node.ask("jsz?accounts=true&streams=true")["account_details"]
    return tuple(
        stream["state"]["last_seq"]
        for account in accounts
        for stream in account.get("stream_detail", ())
        if stream["name"] == STREAM
    )


class ReplicatedNats(CampaignBroker):
    """Three servers, a stream on all of them; what is killed or paused is its leader."""

    def __init__(self, folder: Path, id_window: float) -> None:
        super().__init__()
        self.cluster, self._window = Cluster(folder), int(id_window * 1e9)
        self.server: Leader = Leader(self.cluster)

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.cluster)
        self.server.create(STREAM, SUBJECTS, self._window)
        return [node.url for node in self.cluster.nodes]

    @property
    def ports(self) -> list[int]:
        return super().ports + [node.port for node in self.cluster.nodes]

    def messages(self) -> list[StoredMessage]:
        def agree() -> bool:
            found = {_last_stored(node) for node in self.cluster.nodes}
            return len(found) == 1 and () not in found

        eventually(agree, "all have the same messages")  # a leader that stood still answers for all at first
        return read_nats([node.url for node in self.cluster.nodes], STREAM)

    def step_down(self) -> None:
        """The leader gives the stream to another server."""
        with Admin(self.cluster.url) as admin:
            admin.api(f"STREAM.LEADER.STEPDOWN.{STREAM}")

    def store(self) -> Path:
        return self.server.server.store


class DurableMalamute(CampaignBroker):
    heals = True

    def __init__(self, folder: Path, _: float) -> None:
        super().__init__()
        self.server: RestartableMalamuteBroker = RestartableMalamuteBroker(folder)

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.server)
        return [self.server.url]

    def messages(self) -> list[StoredMessage]:
        return read_sqlite(store_path(self.server.streams, STREAM.encode()))

    def store(self) -> Path:
        return self.server.streams


def broker(bridge: str, folder: Path, id_window: float) -> CampaignBroker:
    """For one of :data:`~.configurations.BRIDGES`; a JetStream stream knows ids for so many seconds."""
    kinds: dict[str, Callable[[Path, float], CampaignBroker]]
    kinds = {"NATS R1": SingleNats, "NATS R3": ReplicatedNats, "Malamute": DurableMalamute}
    return kinds[bridge](folder, id_window)

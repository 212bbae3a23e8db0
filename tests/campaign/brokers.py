"""The brokers of a round: each behind proxies, each can be killed, paused, and have its disk filled."""

from __future__ import annotations

import contextlib
import itertools
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, Self

from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.campaign.oracle import StoredMessage, read_nats, read_sqlite
from tests.support.malamute.broker_process import BrokerProcess
from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy


class BrokerServer(Protocol):
    """What faults strike."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def start(self) -> object: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class CampaignBroker(ABC):
    """Ready inside of ``with``.

    :param id_window: seconds for which its streams know ids
    :ivar server: (the leader, where there are several)
    :ivar proxies: ways to the servers, one each
    :ivar heals: stores again when its disk has room again; else it has to be restarted
    :ivar ordered: options with which rows keep their order; None = there are none
    """

    heals = False
    ordered: ClassVar[dict[str, str] | None] = {"order": "partition", "ackMode": "batch"}
    server: BrokerServer

    def __init__(self, folder: Path, id_window: float) -> None:
        self.folder, self.id_window = folder, id_window
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

    def create(self, stream: str, subject: str) -> None:
        """A stream of this subject. Nothing to do where the first write makes it."""
        return

    @property
    def url(self) -> str:
        """Option ``url``, through the proxies."""
        return ",".join(proxy.url for proxy in self.proxies)

    @property
    def ports(self) -> list[int]:
        """Where clients connect to: the proxies, and servers that tell clients their own address."""
        return [proxy.port for proxy in self.proxies]

    @abstractmethod
    def messages(self, stream: str) -> list[StoredMessage]:
        """All that is stored, in order, as the oracle reads it."""

    def store(self) -> Path:
        """Folder of the server's files."""
        raise NotImplementedError(f"{type(self).__name__} fills no disk")

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
    server: NatsServer

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        self.server = exits.enter_context(NatsServer(self.folder))
        return [self.server.url]

    def create(self, stream: str, subject: str) -> None:
        with Admin(self.server.url) as admin:
            window = int(self.id_window * 1e9)
            admin.create_stream(stream, [subject], allow_batched=True, duplicate_window=window)

    def messages(self, stream: str) -> list[StoredMessage]:
        return read_nats([self.server.url], stream)

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


def _last_stored(node: NatsServer, stream: str) -> tuple[int, ...]:
    """Last sequence of the stream in the server's own store; empty while it has not loaded it."""
    accounts = node.ask("jsz?accounts=true&streams=true")["account_details"]
    streams = (one for account in accounts for one in account.get("stream_detail", ()))
    return tuple(one["state"]["last_seq"] for one in streams if one["name"] == stream)


class ReplicatedNats(CampaignBroker):
    """Three servers, a stream on all of them; what is killed or paused is its leader."""

    server: Leader

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        self.cluster = exits.enter_context(Cluster(self.folder))
        self.server = Leader(self.cluster)
        return [node.url for node in self.cluster.nodes]

    def create(self, stream: str, subject: str) -> None:
        config = {"name": stream, "subjects": [subject], "num_replicas": 3, "storage": "file", "allow_batched": True}
        config["duplicate_window"] = int(self.id_window * 1e9)
        with Admin(self.cluster.url) as admin:
            eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{stream}", config), "three peers are known")
            eventually(lambda: admin.info(stream)["cluster"].get("leader"), "a leader")
        self.server.stream = stream

    @property
    def ports(self) -> list[int]:
        return super().ports + [node.port for node in self.cluster.nodes]

    def messages(self, stream: str) -> list[StoredMessage]:
        def agree() -> bool:
            found = {_last_stored(node, stream) for node in self.cluster.nodes}
            return len(found) == 1 and () not in found

        eventually(agree, "all have the same messages")  # a leader that stood still answers for all at first
        return read_nats([node.url for node in self.cluster.nodes], stream)

    def step_down(self) -> None:
        """The leader gives the stream to another server."""
        with Admin(self.cluster.url) as admin:
            admin.api(f"STREAM.LEADER.STEPDOWN.{self.server.stream}")

    def store(self) -> Path:
        return self.server.server.store


class MalamuteServer(RestartableMalamuteBroker):
    """Stores every stream."""

    def __init__(self, folder: Path, id_window: float, engine: str | None = None) -> None:
        super().__init__(folder)
        BrokerProcess.__init__(self, folder, ".*", f'dedup_window = "{id_window:g}s"', engine=engine)


class DurableMalamute(CampaignBroker):
    heals = True
    ordered: ClassVar[dict[str, str] | None] = None
    server: MalamuteServer

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        self.server = exits.enter_context(MalamuteServer(self.folder, self.id_window))
        return [self.server.url]

    def messages(self, stream: str) -> list[StoredMessage]:
        return read_sqlite(store_path(self.store(), stream.encode()))

    def store(self) -> Path:
        return self.server.streams


class MalamuteOverNats(CampaignBroker):
    """Streams of the engine ``jetstream``. ``server`` is the server behind the broker, and the broker, in turns."""

    ordered: ClassVar[dict[str, str] | None] = None

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        self.nats = exits.enter_context(NatsServer(self.folder / "nats"))
        engine = f'engine = "jetstream"\nservers = "{self.nats.url}"'
        broker = exits.enter_context(MalamuteServer(self.folder, self.id_window, engine))
        servers: tuple[BrokerServer, ...] = (self.nats, broker)
        self._turns = itertools.cycle(servers)
        return [broker.url]

    @property
    def server(self) -> BrokerServer:  # type: ignore[override]
        return next(self._turns)

    def messages(self, stream: str) -> list[StoredMessage]:
        found = read_nats([self.nats.url], f"mlp-{stream}")
        return [one._replace(topic=one.topic.removeprefix(f"mlp.{stream}.")) for one in found]


#: By :data:`~.configurations.BRIDGES`, and one that only repeated batches are published to.
BROKERS: dict[str, Callable[[Path, float], CampaignBroker]] = {
    "NATS R1": SingleNats, "NATS R3": ReplicatedNats, "Malamute": DurableMalamute,
    "Malamute over NATS": MalamuteOverNats,
}  # fmt: skip

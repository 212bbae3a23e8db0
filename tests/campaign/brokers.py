"""The brokers of a round: each behind proxies, each can be killed, paused, and have its disk filled."""

from __future__ import annotations

import contextlib
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.campaign.configurations import STREAM
from tests.campaign.oracle import StoredMessage, read_nats, read_sqlite
from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

SUBJECTS = ["campaign.>"]
_WINDOW = 3_600_000_000_000


class CampaignBroker(ABC):
    """Ready inside of ``with``; the stream is there.

    :ivar proxies: ways to the servers, one each
    :ivar heals: stores again when its disk has room again; else it has to be restarted
    """

    heals = False

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
    @abstractmethod
    def ports(self) -> list[int]:
        """Where clients connect to: the proxies, and servers that tell clients their own address."""

    @abstractmethod
    def messages(self) -> list[StoredMessage]:
        """All that is stored, in order, as the oracle reads it."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to the server (the leader, where there are several)."""

    @abstractmethod
    def start(self) -> None:
        """What was killed."""

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def _pid(self) -> int: ...

    @abstractmethod
    def _largest_file(self) -> int: ...

    def fill_disk(self, more: int) -> None:
        """Files may grow by ``more`` octets beyond the largest there is now."""
        self._limit(self._largest_file() + more)

    def free_disk(self) -> None:
        """No limit any more; what does not recover by itself is restarted."""
        self._limit(resource.RLIM_INFINITY)
        if not self.heals:
            self.kill()
            self.start()

    def _limit(self, size: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(self._pid(), resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (size, hard))


def largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # just removed
            sizes.append(path.stat().st_size)
    return max(sizes)


class SingleNats(CampaignBroker):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.server = NatsServer(folder)

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.server)
        with Admin(self.server.url) as admin:
            admin.create_stream(STREAM, SUBJECTS, allow_batched=True, duplicate_window=_WINDOW)
        return [self.server.url]

    @property
    def ports(self) -> list[int]:
        return [self.proxies[0].port]

    def messages(self) -> list[StoredMessage]:
        return read_nats([self.server.url], STREAM)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def _pid(self) -> int:
        return self.server.pid

    def _largest_file(self) -> int:
        return largest_file(self.server.store)


class ReplicatedNats(CampaignBroker):
    """Three servers, a stream on all of them; what is killed or paused is its leader."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.cluster = Cluster(folder)
        self._victim: NatsServer | None = None

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.cluster)
        config = {"name": STREAM, "subjects": SUBJECTS, "num_replicas": 3, "storage": "file", "allow_batched": True}
        config["duplicate_window"] = _WINDOW
        with Admin(self.cluster.url) as admin:
            eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{STREAM}", config), "three peers are known")
            eventually(lambda: admin.info(STREAM)["cluster"].get("leader"), "a leader")
        return [node.url for node in self.cluster.nodes]

    @property
    def ports(self) -> list[int]:
        return [proxy.port for proxy in self.proxies] + [node.port for node in self.cluster.nodes]

    def messages(self) -> list[StoredMessage]:
        return read_nats([node.url for node in self.cluster.nodes], STREAM)

    def _leader(self) -> NatsServer:
        def named() -> str:
            return str(admin.info(STREAM)["cluster"].get("leader") or "")

        with Admin(self.cluster.url) as admin:
            return self.cluster.node(eventually(named, "a leader"))

    def kill(self) -> None:
        victim = self._victim or self._leader()
        self._victim = victim
        victim.kill()

    def start(self) -> None:
        assert self._victim is not None
        self._victim.start()
        self._victim = None

    def pause(self) -> None:
        self._victim = self._leader()
        self._victim.pause()

    def resume(self) -> None:
        assert self._victim is not None
        self._victim.resume()
        self._victim = None

    def step_down(self) -> None:
        """The leader gives the stream to another server."""
        with Admin(self.cluster.url) as admin:
            admin.api(f"STREAM.LEADER.STEPDOWN.{STREAM}")

    def fill_disk(self, more: int) -> None:
        self._victim = self._leader()
        super().fill_disk(more)

    def _pid(self) -> int:
        assert self._victim is not None
        return self._victim.pid

    def _largest_file(self) -> int:
        assert self._victim is not None
        return largest_file(self._victim.store)


class DurableMalamute(CampaignBroker):
    heals = True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.process = RestartableMalamuteBroker(folder)

    def _serve(self, exits: contextlib.ExitStack) -> list[str]:
        exits.enter_context(self.process)
        return [self.process.url]

    @property
    def ports(self) -> list[int]:
        return [self.proxies[0].port]

    def messages(self) -> list[StoredMessage]:
        return read_sqlite(self.process.folder / f"{STREAM}.stream")

    def kill(self) -> None:
        self.process.kill()

    def start(self) -> None:
        self.process.start()

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def _pid(self) -> int:
        return self.process.pid

    def _largest_file(self) -> int:
        return largest_file(self.process.folder)


def broker(bridge: str, folder: Path) -> CampaignBroker:
    """For one of :data:`~.configurations.BRIDGES`."""
    kinds: dict[str, Callable[[Path], CampaignBroker]]
    kinds = {"NATS R1": SingleNats, "NATS R3": ReplicatedNats, "Malamute": DurableMalamute}
    return kinds[bridge](folder)

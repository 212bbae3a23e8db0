"""Brokers whose streams recognise an id for a second, for :mod:`.repeated_batches`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.nats.server.nats_server import NatsServer

from tests.campaign.brokers import Leader
from tests.campaign.oracle import StoredMessage, read_nats, read_sqlite
from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin

#: Seconds: the duplicate window of all streams.
WINDOW = 1.0


class KilledProcess(Protocol):
    """What tests may do to a broker."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    @property
    def url(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> object: ...


class ForgetfulBroker(ABC):
    """:ivar process: can be killed and started again
    :ivar ordered: options with which rows keep their order; None = there are none
    """

    ordered: ClassVar[dict[str, str] | None] = None
    process: KilledProcess

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.__exit__(kind, error, at)

    @property
    def url(self) -> str:
        return self.process.url

    def create(self, stream: str) -> None:
        """Such a stream. Nothing to do where the first write makes it."""
        return

    @abstractmethod
    def messages(self, stream: str) -> list[StoredMessage]: ...


class ForgetfulNats(ForgetfulBroker):
    ordered: ClassVar[dict[str, str] | None] = {"order": "partition", "ackMode": "batch"}

    def __init__(self, folder: Path) -> None:
        self.process = NatsServer(folder)

    def create(self, stream: str) -> None:
        with Admin(self.url) as admin:
            admin.create_stream(stream, [f"{stream}.>"], duplicate_window=int(WINDOW * 1e9), allow_batched=True)

    def messages(self, stream: str) -> list[StoredMessage]:
        return read_nats([self.url], stream)


class _ClusterLeader(Leader):
    def __init__(self, folder: Path) -> None:
        super().__init__(Cluster(folder))

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cluster.__exit__(kind, error, at)

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.cluster.nodes)


class ForgetfulReplicatedNats(ForgetfulBroker):
    """Three servers, each stream on all of them."""

    ordered: ClassVar[dict[str, str] | None] = ForgetfulNats.ordered

    def __init__(self, folder: Path) -> None:
        self.process = self._leader = _ClusterLeader(folder)

    def create(self, stream: str) -> None:
        self._leader.create(stream, [f"{stream}.>"], int(WINDOW * 1e9))

    def messages(self, stream: str) -> list[StoredMessage]:
        return read_nats(self.url.split(","), stream)


class ForgetfulMalamute(ForgetfulBroker):
    def __init__(self, folder: Path) -> None:
        self.process = self._broker = BrokerProcess(folder, ".*", f'dedup_window = "{WINDOW:g}s"')

    def messages(self, stream: str) -> list[StoredMessage]:
        return read_sqlite(store_path(self._broker.streams, stream.encode()))


class _BrokerOrNats:
    """A broker and the server behind it, one of which is killed and started again, each in its turn."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.nats = folder, NatsServer(folder / "nats")
        self._broker: BrokerProcess | None = None
        self._turn = 0

    def __enter__(self) -> Self:
        self.nats.__enter__()
        engine = f'engine = "jetstream"\nservers = "{self.nats.url}"'
        self._broker = BrokerProcess(self._folder, ".*", f'dedup_window = "{WINDOW:g}s"', engine=engine)
        self._broker.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._broker is not None:
            self._broker.__exit__(kind, error, at)
        self.nats.__exit__(kind, error, at)

    @property
    def url(self) -> str:
        return self._killable[1].url

    @property
    def _killable(self) -> tuple[NatsServer, BrokerProcess]:
        assert self._broker is not None
        return self.nats, self._broker

    def kill(self) -> None:
        self._killable[self._turn % 2].kill()

    def start(self) -> None:
        self._killable[self._turn % 2].start()
        self._turn += 1


class ForgetfulMalamuteOverNats(ForgetfulBroker):
    """Streams of the engine ``jetstream``."""

    def __init__(self, folder: Path) -> None:
        self.process = self._servers = _BrokerOrNats(folder)

    def messages(self, stream: str) -> list[StoredMessage]:
        found = read_nats([self._servers.nats.url], f"mlp-{stream}")
        return [one._replace(topic=one.topic.removeprefix(f"mlp.{stream}.")) for one in found]


BROKERS: dict[str, Callable[[Path], ForgetfulBroker]] = {
    "nats": ForgetfulNats, "nats-r3": ForgetfulReplicatedNats, "malamute": ForgetfulMalamute,
    "malamute-jetstream": ForgetfulMalamuteOverNats,
}  # fmt: skip

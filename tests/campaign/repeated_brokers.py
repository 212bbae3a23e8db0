"""Brokers whose streams recognise an id for a second, for :mod:`.repeated_batches`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.services.malamute_broker.engines.durable.store_reader import store_path

from tests.campaign.oracle import StoredMessage, read_nats, read_sqlite
from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.nats_servers import Admin

#: Seconds: the duplicate window of all streams.
WINDOW = 1.0


class ForgetfulBroker(ABC):
    """:ivar process: can be killed and started again
    :ivar ordered: options with which rows keep their order; None = there are none
    """

    ordered: ClassVar[dict[str, str] | None]
    process: NatsServer | BrokerProcess

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.__exit__(kind, error, at)

    @property
    def url(self) -> str:
        return self.process.url

    @abstractmethod
    def create(self, stream: str) -> None: ...

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


class ForgetfulMalamute(ForgetfulBroker):
    ordered: ClassVar[dict[str, str] | None] = None

    def __init__(self, folder: Path) -> None:
        self.process = BrokerProcess(folder, ".*", f'dedup_window = "{WINDOW:g}s"')

    def create(self, stream: str) -> None:
        """Streams are made when they are written to first."""

    def messages(self, stream: str) -> list[StoredMessage]:
        assert isinstance(self.process, BrokerProcess)
        return read_sqlite(store_path(self.process.streams, stream.encode()))


BROKERS = {"nats": ForgetfulNats, "malamute": ForgetfulMalamute}

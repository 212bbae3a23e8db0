"""What the tests of the managed publisher run over: a listener that records, and a middleware in memory or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.api import Flight, PublishAck
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.support.nats.client_closing import close_abandoned, close_client
from tests.support.nats.event_loop_thread import EventLoopThread
from tests.support.nats.nats_servers import Admin

LONG = 60.0  #: seconds for a condition; never reached by a sound publisher


class StoredPublish(NamedTuple):
    """What the middleware holds."""

    topic: str
    payload: bytes
    headers: dict[str, list[str]]


class RecordingListener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def published(self, flight: Flight) -> None:
        self.heard.append(("published", flight.id))

    def acked(self, flight: Flight) -> None:
        self.heard.append(("acked", flight.id))

    def completed_exceptionally(self, flight: Flight) -> None:
        self.heard.append(("completed_exceptionally", flight.id))

    def timeout(self, flight: Flight) -> None:
        self.heard.append(("timeout", flight.id))

    def events(self, id_: str) -> list[str]:
        """The events of one flight, in order."""
        return [event for event, flight in self.heard if flight == id_]


def patient(publisher: ManagedPublisher, wait: float = LONG) -> None:
    """Let it wait for acknowledgements so many seconds from now on, or as long as they take."""
    publisher.window.policy = replace(publisher.window.policy, wait_timeout=wait)


def ack_of(future: Future[Flight]) -> Future[PublishAck]:
    """The acknowledgement of what :meth:`ManagedPublisher.publish_async` gave."""
    return future.result(LONG).publish_ack_future


class PublisherHarness(ABC):
    """Makes publishers and stops them in the end.

    :ivar topic: stored and acknowledged
    :ivar stream: where
    """

    topic = "t.x"
    stream: str

    def __init__(self) -> None:
        self.listener = RecordingListener()
        self.made: list[ManagedPublisher] = []

    def publisher(self, *, target: object = None, **options: Any) -> ManagedPublisher:
        """A publisher that was not started."""
        options = {"id_prefix": "p", "listener": self.listener, "wait_timeout": LONG, **options}
        publisher = ManagedPublisher(self.target() if target is None else target, **self.given(), **options)
        self.made.append(publisher)
        return publisher

    @abstractmethod
    def target(self) -> object:
        """What a publisher publishes through."""

    def given(self) -> dict[str, Any]:
        """What a publisher must be told of :meth:`target`."""
        return {}

    @abstractmethod
    def held(self) -> list[StoredPublish]:
        """What is stored under :attr:`topic` and its neighbours, in order."""

    @abstractmethod
    def lose(self, n: int) -> str:
        """A topic whose next ``n`` messages are taken and not acknowledged."""

    def payloads(self) -> list[bytes]:
        return [m.payload for m in self.held()]

    def close(self) -> None:
        for publisher in self.made:
            publisher.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryPublisherHarness(PublisherHarness):
    """Publishers to a broker in memory, with faults by script."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.stream = uuid4().hex
        self.broker = MemoryBroker.get(self.name)

    def target(self) -> MemoryBridge:
        return MemoryBridge(self.name)

    def held(self) -> list[StoredPublish]:
        return [StoredPublish(m.topic, m.payload, m.headers) for m in self.broker.messages()]

    def lose(self, n: int) -> str:
        self.broker.then(["lose"] * n)
        return self.topic

    def close(self) -> None:
        super().close()
        MemoryBroker.forget(self.name)


class NatsPublisherHarness(PublisherHarness):
    """Publishers over a live JetStream context whose event loop runs on a thread of its own.

    :param server: running; left so
    """

    _own = False

    def __init__(self, server: NatsServer, *, domain: str | None = None, **options: Any) -> None:
        super().__init__()
        self.server, self.stream = server, "S"
        self.admin = Admin(server.url, **options).__enter__()
        self.admin.create_stream("S", ["t.>"])
        self.loop = EventLoopThread()
        self.client: Client = self.loop.run(self._connect(options), LONG, "connecting")
        self._domain = domain

    async def _connect(self, options: dict[str, Any]) -> Client:
        client = Client()

        async def quiet(_: Exception) -> None:
            """Outages are what the tests make."""
            close_abandoned(client)

        often: dict[str, Any] = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
        await client.connect(self.server.url, error_cb=quiet, **often, **options)
        return client

    @classmethod
    def started(cls, folder: Path, *, config: str = "", jetstream: str = "", **options: Any) -> NatsPublisherHarness:
        """With a server of its own, which :meth:`close` ends."""
        server = NatsServer(folder / "nats", config=config, jetstream=jetstream).start()
        try:
            harness = cls(server, **options)
        except BaseException:
            server.stop()
            raise
        harness._own = True
        return harness

    def target(self) -> JetStreamContext:
        return self.client.jetstream(domain=self._domain)

    def given(self) -> dict[str, Any]:
        return {"client": self.client, "loop": self.loop.loop}

    def held(self) -> list[StoredPublish]:
        return [StoredPublish(m.topic, m.payload, m.headers) for m in self.admin.messages("S")]

    def lose(self, n: int) -> str:
        if not self.admin.api("STREAM.NAMES", {"subject": "quiet.x"})["streams"]:
            self.admin.create_stream("QUIET", ["quiet.>"], no_ack=True)
        return "quiet.x"

    def close(self) -> None:
        super().close()
        self.loop.run(close_client(self.client), LONG, "closing")
        self.loop.stop()
        self.admin.__exit__(None, None, None)
        if self._own:
            self.server.stop()

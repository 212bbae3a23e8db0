"""What the tests of OpenMAMA's API run over: the memory bridge in both styles of events, and a real NATS server.

The fixtures are for a ``conftest.py``: ``harness``, ``memory``, ``nats_with_users`` and ``recorder``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import EventStyle, PublisherBridge
from mama_spark.mama import (
    MamaMsg,
    Publisher,
    PublisherCallbacks,
    Queue,
    Status,
    StatusError,
    Transport,
    TransportTopicEvent,
)
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.memory import MemoryBridge, MemoryBroker
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin

LONG = 60.0  #: seconds for what must happen; never reached

_USERS = (
    'authorization { users = [ {user: a, password: p, permissions: {publish: {deny: "denied.>"}, '
    'subscribe: {deny: "private.>"}}}, {user: admin, password: p} ] }'
)


class ReceivedMessage(NamedTuple):
    topic: str
    payload: bytes
    headers: dict[str, list[str]]


def dispatch(queue: Queue) -> None:
    """Make all the calls that wait, however slow this thread is."""
    while queue.dispatch_event():
        pass


def a_message(number: int = 0) -> MamaMsg:
    msg = MamaMsg()
    msg.add(FieldType.I32, "Number", 9000, number)
    return msg


@contextmanager
def dispatched(queued: bool) -> Iterator[Queue | None]:
    """A queue with a thread that dispatches it; None: there shall be none."""
    if not queued:
        yield None
        return
    queue = Queue("callbacks")
    with queue.start():
        yield queue


class CallbackRecorder:
    """Callbacks that record each call: name, state of the publisher, status, text, thread."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str | None, str | None, str]] = []
        self.closures: list[Any] = []
        self.topics: list[tuple[TransportTopicEvent, str, str]] = []

    def callbacks(self, *names: str) -> PublisherCallbacks:
        """All four, or those named."""
        wanted = names or ("create", "error", "success", "destroy")
        return PublisherCallbacks(
            on_create=self._life("create") if "create" in wanted else None,
            on_error=self._answer("error") if "error" in wanted else None,
            on_destroy=self._life("destroy") if "destroy" in wanted else None,
            on_success=self._answer("success") if "success" in wanted else None,
        )

    def _life(self, name: str) -> Callable[[Publisher, Any], None]:
        def call(publisher: Publisher, closure: Any) -> None:
            self._note(name, publisher, None, None, closure)

        return call

    def _answer(self, name: str) -> Callable[[Publisher, Status, str, Any], None]:
        def call(publisher: Publisher, status: Status, info: str, closure: Any) -> None:
            self._note(name, publisher, status, info, closure)

        return call

    def _note(self, name: str, publisher: Publisher, status: Status | None, info: str | None, closure: Any) -> None:
        self.closures.append(closure)
        state, thread = publisher.state.name, threading.current_thread().name
        self.heard.append((name, state, None if status is None else status.name, info, thread))

    def on_topic(self, transport: Transport, event: TransportTopicEvent, topic: str, info: str, closure: Any) -> None:
        self.topics.append((event, topic, info))

    def count(self, name: str) -> int:
        return sum(h[0] == name for h in self.heard)

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Calls of create, error, success, destroy."""
        return self.count("create"), self.count("error"), self.count("success"), self.count("destroy")


class MamaHarness(ABC):
    """One middleware, fresh for a test.

    :ivar source: may be published to; ``denied``: may not
    """

    denied = "denied"

    def __init__(self, style: EventStyle) -> None:
        self.style, self.source = style, "t"
        self.symbol = f"S{uuid4().hex[:12]}"
        self._ends = ExitStack()

    @abstractmethod
    def bridge(self) -> PublisherBridge:
        """A new one, not open."""

    @abstractmethod
    def held(self) -> list[ReceivedMessage]:
        """What is stored under :attr:`symbol` of :attr:`source`, in order."""

    @abstractmethod
    def deny(self) -> None:
        """Nobody may publish to :attr:`symbol` of :attr:`denied` from here on."""

    def transport(self, **options: Any) -> Transport:
        """Destroyed in the end. Waits for all that is not said here as long as it takes."""
        patience = {"call_timeout": LONG, "answer_timeout": LONG, "destroy_timeout": LONG}
        transport = Transport.create("pub", self.bridge(), **{**patience, **options})
        self._ends.callback(transport.destroy)
        return transport

    @property
    def topic(self) -> str:
        return f"{self.source}.{self.symbol}"

    @property
    def publisher_style(self) -> bool:
        return self.style is EventStyle.PUBLISHER

    def close(self) -> None:
        self._ends.close()


class MemoryMamaHarness(MamaHarness):
    def __init__(self, style: EventStyle) -> None:
        super().__init__(style)
        self.broker = MemoryBroker.get(self.symbol)

    def bridge(self) -> MemoryBridge:
        return MemoryBridge(self.symbol, events=self.style)

    def held(self) -> list[ReceivedMessage]:
        return [ReceivedMessage(m.topic, m.payload, m.headers) for m in self.broker.messages() if m.topic == self.topic]

    def deny(self) -> None:
        self.broker.denied.add(f"{self.denied}.{self.symbol}")

    def close(self) -> None:
        super().close()
        MemoryBroker.forget(self.symbol)


class NatsMamaHarness(MamaHarness):
    def __init__(self, server: NatsServer, admin: Admin) -> None:
        super().__init__(EventStyle.PUBLISHER)
        self.server, self.admin = server, admin

    def bridge(self) -> NatsBridge:
        return NatsBridge(NatsSettings((self.server.url,), user="a", password="p"))

    def held(self) -> list[ReceivedMessage]:
        stored = self.admin.messages("T")
        return [ReceivedMessage(m.topic, m.payload, m.headers) for m in stored if m.topic == self.topic]

    def deny(self) -> None:
        """The server does so from its start."""


@pytest.fixture(scope="module")
def nats_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    """A server with the streams of the harness, and a user ``a`` who may not publish to ``denied.>``."""
    with NatsServer(tmp_path_factory.mktemp("harness") / "nats", config=_USERS) as server:
        with Admin(server.url, user="admin", password="p") as admin:
            admin.create_stream("T", ["t.>", "denied.>"])
            admin.create_stream("QUIET", ["quiet.>"], no_ack=True)
            yield server, admin
        POOL.clear()


@pytest.fixture(params=["memory", "memory by transport events", "nats"])
def harness(request: pytest.FixtureRequest) -> Iterator[MamaHarness]:
    made: MamaHarness
    if request.param == "nats":
        made = NatsMamaHarness(*request.getfixturevalue("nats_with_users"))
    else:
        made = MemoryMamaHarness(EventStyle.PUBLISHER if request.param == "memory" else EventStyle.TRANSPORT)
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[MemoryMamaHarness]:
    """The memory bridge in the style of publisher events."""
    made = MemoryMamaHarness(EventStyle.PUBLISHER)
    yield made
    made.close()


@pytest.fixture
def recorder() -> CallbackRecorder:
    return CallbackRecorder()


def published(
    harness: MamaHarness, transport: Transport, recorder: CallbackRecorder, *names: str, queue: Queue | None = None
) -> Publisher:
    """A publisher whose callbacks are those of ``recorder``; ``names``: these alone."""
    callbacks = recorder.callbacks(*names) if names else recorder.callbacks()
    return Publisher.create_with_callbacks(transport, queue, harness.symbol, harness.source, None, callbacks, "mine")


def fails(status: Status, call: Callable[..., object], *args: Any, match: str | None = None) -> None:
    """The call raises this status."""
    with pytest.raises(StatusError, match=match) as error:
        call(*args)
    assert error.value.status is status

"""Interfaces between a transport and its objects, so that neither need import the other's module."""

from __future__ import annotations

from typing import Protocol

from .bridge_loop import BridgeLoop
from .messages.msg import MamaMsg
from .messages.source_records import SourceFields
from .messages.status import Status
from .states import TransportTopicEvent


class TransportPublisher(Protocol):
    """A :class:`~mama_spark.mama.publisher.publisher.Publisher`."""

    @property
    def topic(self) -> str: ...

    def destroy(self) -> None: ...

    def wait_destroyed(self, timeout: float) -> None: ...


class TransportReceiver(Protocol):
    """An :class:`~mama_spark.mama.inbox.Inbox` or a :class:`~mama_spark.mama.inbox.RequestListener`."""

    def destroy(self) -> None: ...


class ReplyInbox(Protocol):
    """The part of an :class:`~mama_spark.mama.inbox.Inbox` that delivers replies."""

    def deliver(self, msg: MamaMsg) -> None: ...

    def fail(self, status: Status, info: str) -> None: ...


class SourceReader(Protocol):
    """Reads the sources of a transport: a :class:`~mama_spark.mama.discovery.discovery.DiscoveryLoop`."""

    def send_image(self, inbox: ReplyInbox) -> None: ...

    def stop(self, timeout: float) -> None: ...


class DiscoveryTransport(Protocol):
    """The part of a :class:`~mama_spark.mama.transport.Transport` that its source discovery uses."""

    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> SourceFields: ...

    @property
    def loop(self) -> BridgeLoop: ...

    @property
    def destroy_timeout(self) -> float: ...

    def source_reader(self) -> SourceReader: ...

    def report_topic_event(self, event: TransportTopicEvent, topic: str, info: str) -> None: ...

"""Interfaces of the objects of a transport, so that the transport need not import their modules."""

from __future__ import annotations

from typing import Protocol

from .messages.msg import MamaMsg
from .messages.status import Status


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

"""The types that users of :class:`ManagedPublisher` see: flights, options, listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ..contracts.errors import ConfigError
from ..contracts.headers import EXPECTED_LAST
from ..options.window_config import RetryPolicy

#: The name in the specification (MP-06).
RetryConfig = RetryPolicy

Headers = dict[str, list[str]]
HeadersLike = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Expectations of one message (MP-22): the middleware refuses it when they do not hold. They switch off blind
    resends, because a stored message would make its own expectation fail.

    :param msg_id: replaces the id that the publisher would make
    :param expected_last_subject_sequence_subject: wildcards allowed; None = the message's own
    :raises ConfigError: that subject is given without an expected sequence
    """

    msg_id: str | None = None
    expected_stream: str | None = None
    expected_last_msg_id: str | None = None
    expected_last_sequence: int | None = None
    expected_last_subject_sequence: int | None = None
    expected_last_subject_sequence_subject: str | None = None

    def __post_init__(self) -> None:
        if self.expected_last_subject_sequence_subject is not None and self.expected_last_subject_sequence is None:
            raise ConfigError("expected_last_subject_sequence_subject needs expected_last_subject_sequence")

    def headers(self) -> Headers:
        """The same as ``Nats-Expected-*`` headers."""
        named = {
            "Nats-Expected-Stream": self.expected_stream,
            "Nats-Expected-Last-Msg-Id": self.expected_last_msg_id,
            "Nats-Expected-Last-Sequence": self.expected_last_sequence,
            EXPECTED_LAST: self.expected_last_subject_sequence,
            f"{EXPECTED_LAST}-Subject": self.expected_last_subject_sequence_subject,
        }
        return {name: [str(value)] for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PublishAck:
    """An acknowledgement of the middleware; fields that it does not send are None.

    :ivar domain: the JetStream domain of the stream, where the server has one
    """

    stream: str | None
    sequence: int | None
    duplicate: bool
    domain: str | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """One message in flight (MP-15).

    :ivar id: sent for deduplication (MP-18); ``subject`` (MP-19), ``headers`` (MP-20), ``body`` (MP-21) and ``options``
        (MP-22) are as the user gave them
    :ivar publish_time: wall clock seconds of the first send (MP-16), None before
    :ivar publish_ack_future: the acknowledgement, or the error that ended the flight (MP-17)
    :ivar sends: number of sends
    """

    id: str
    subject: str
    body: bytes
    headers: Headers | None = None
    options: PublishOptions | None = None
    publish_time: float | None = None
    publish_ack_future: Future[PublishAck] = field(default_factory=Future, repr=False)
    sends: int = 0


class PublisherListener(Protocol):
    """Callbacks (MP-10). They run on the publisher's threads, one at a time, ``published`` first. Their exceptions are
    logged and counted, and ignored. They may publish without blocking: a full queue raises QueueFull."""

    def published(self, flight: Flight) -> None:
        """The message was handed to the middleware (MP-11)."""

    def acked(self, flight: Flight) -> None:
        """The acknowledgement came (MP-12)."""

    def completed_exceptionally(self, flight: Flight) -> None:
        """Publishing failed; ``publish_ack_future`` has the error (MP-13)."""

    def timeout(self, flight: Flight) -> None:
        """No acknowledgement in time (MP-14)."""

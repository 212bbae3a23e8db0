"""The settings of a Malamute transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.client.connection_settings import FEATURES, ConnectionSettings
from mama_spark.malamute.protocol.commands import MAX_STRING
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.options import SinkOptions, TransportOptions


@dataclass(frozen=True, slots=True)
class MalamuteSettings:
    """Settings of one bridge; times in seconds.

    :param stream: stream of messages that name none
    :param acks: False: nothing is acknowledged (``ackMode=none``)
    :param dedup: messages carry ids, where the stream drops repeats
    :param resend: send again a message that may be stored, although its stream may store it twice (``onUncertain``)
    :param dead_letters: messages may be dead letters, which have headers
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    stream: str | None = None
    acks: bool = True
    dedup: bool = True
    resend: bool = True
    dead_letters: bool = False
    connect_timeout: float = 5.0

    def __post_init__(self) -> None:
        stream_bytes = (self.stream or "").encode()
        if len(stream_bytes) > MAX_STRING or 0 in stream_bytes:
            raise ConfigError(f"the name of a stream has at most {MAX_STRING} bytes, and no NUL")

    @classmethod
    def from_options(cls, o: TransportOptions) -> Self:
        connection = ConnectionSettings(
            o.url,
            user=o.user,
            password=o.password,
            curve_server_key=o.curve_server_key,
            curve_public_key=o.curve_public_key,
            curve_secret_key=o.curve_secret_key,
            features=FEATURES & ~(Feature.CREDIT | Feature.CONFIRM) | Feature.BLOCKS,  # the former are for receivers
        )
        if not isinstance(o, SinkOptions):
            return cls(connection, connect_timeout=o.connect_timeout)
        return cls(
            connection,
            o.stream or stream_of(o.url),
            o.ack_mode != "none",
            o.dedup,
            o.on_uncertain == "resend",
            o.dead_letter_topic is not None,
            o.connect_timeout,
        )


def stream_of(urls: tuple[str, ...]) -> str | None:
    """The stream in the path of the URLs (``mlp://host:9999/stream``).

    :raises ConfigError: they name several
    """
    named = {path for url in urls if (path := urlsplit(url).path.strip("/"))}
    if len(named) > 1:
        raise ConfigError("the urls name different streams: give brokers of one stream")
    return named.pop() if named else None

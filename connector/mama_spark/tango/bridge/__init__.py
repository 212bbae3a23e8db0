"""Tango bridge: encodes rows as log records, which an event source (``mama tango-source``) serves, and appends them to
a log through the bridge of that log. The log must store messages, and each message contains one record."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from mama_spark.contracts.bridge import Ack, Capabilities, EventStyle, PollResult, PublisherBridge, ValidationResult
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.options import SinkOptions

from ..log.records import PREFIX
from .row_codec import RecordCodec

__all__ = ["RecordCodec", "TangoBridge", "publisher_bridge", "row_codec"]


class TangoBridge(PublisherBridge):
    """A :class:`~mama_spark.contracts.bridge.PublisherBridge` on the bridge of a log, which it opens and closes."""

    def __init__(self, log: PublisherBridge) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"<TangoBridge on {self._log!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the log's bridge without packs, which event sources cannot read, and without discovery."""
        return replace(self._log.capabilities, packs=False, events=EventStyle.TRANSPORT)

    def open(self) -> None:
        self._log.open()

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """Validate a batch; see :class:`~mama_spark.contracts.bridge.PublisherBridge`.

        :raises ConfigError: the log does not store messages
        """
        prepared = self._log.prepare(batch)
        ack = self._log.capabilities.ack  # it may depend on the topics of the batch
        if ack is not Ack.STORED:
            raise ConfigError(
                f"option log: messages published there are not stored ({ack.value}), so they cannot be served; "
                "give a JetStream stream, or a durable stream of Malamute"
            )
        return prepared

    def send(self, batch: MessageBatch, first_token: int) -> int:
        return self._log.send(batch, first_token)

    def flush(self) -> None:
        self._log.flush()

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        return self._log.poll(timeout, want)

    def explain_missing_acks(self) -> str:
        return self._log.explain_missing_acks()

    def duplicate_window(self) -> float | None:
        return self._log.duplicate_window()

    def close(self) -> None:
        self._log.close()


def publisher_bridge(o: SinkOptions, log: PublisherBridge) -> TangoBridge:
    """The publisher bridge on the bridge of the log in option ``log``."""
    return TangoBridge(log)


def row_codec(o: SinkOptions) -> RecordCodec:
    """The row codec of the options of a query."""
    return RecordCodec(urlsplit(o.url[0]).netloc, o.topic_prefix or PREFIX)

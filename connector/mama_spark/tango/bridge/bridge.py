"""Publisher bridge of Tango: appends records to a log through the bridge of that log.

It adds two requirements: the log stores messages, and each message contains one record.
"""

from __future__ import annotations

from dataclasses import replace

from mama_spark.contracts.bridge import (
    Ack,
    Capabilities,
    EventStyle,
    PollResult,
    PublisherBridge,
    ValidationResult,
)
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch


class TangoBridge(PublisherBridge):
    """A :class:`~mama_spark.contracts.bridge.PublisherBridge` on the bridge of a log.

    :param log: bridge of the log; this bridge opens and closes it
    """

    def __init__(self, log: PublisherBridge) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"<TangoBridge on {self._log!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the log's bridge without packs, which event sources cannot read, and without discovery."""
        return replace(self._log.capabilities, packs=False, discovery=False, events=EventStyle.TRANSPORT)

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
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        return self._log.explain_missing_acks()

    def close(self) -> None:
        self._log.close()

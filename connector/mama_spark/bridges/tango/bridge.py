"""Publisher bridge that appends records to a log, through the bridge of that log.

It adds two requirements: the log must store messages, and each record is a message of its own.
"""

from __future__ import annotations

from dataclasses import replace

from mama_spark.bridge import (
    Ack,
    Capabilities,
    EventStyle,
    PollResult,
    PublisherBridge,
    SilenceReporter,
    ValidationResult,
)
from mama_spark.errors import ConfigError
from mama_spark.message import MessageBatch


class TangoBridge:
    """See :class:`~mama_spark.bridge.PublisherBridge`.

    :param log: bridge of the log; opened and closed with this one
    """

    def __init__(self, log: PublisherBridge) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"<TangoBridge on {self._log!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the log's bridge, without packs, which no event source reads, and without discovery."""
        return replace(self._log.capabilities, packs=False, discovery=False, events=EventStyle.TRANSPORT)

    def open(self) -> None:
        self._log.open()

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """
        :raises ConfigError: the stream of the options stores nothing
        """
        prepared = self._log.prepare(batch)
        ack = self._log.capabilities.ack  # may depend on the topics of the batch
        if ack is not Ack.STORED:
            raise ConfigError(
                f"option log: what is published there is not stored ({ack.value}), so nobody could serve it; "
                "give a JetStream stream, or a durable stream of Malamute"
            )
        return prepared

    def send(self, batch: MessageBatch, first_token: int) -> int:
        return self._log.send(batch, first_token)

    def flush(self) -> None:
        self._log.flush()

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        return self._log.poll(timeout, want)

    def explain_silence(self) -> str:
        """See :class:`~mama_spark.bridge.SilenceReporter`."""
        return self._log.explain_silence() if isinstance(self._log, SilenceReporter) else ""

    def close(self) -> None:
        self._log.close()

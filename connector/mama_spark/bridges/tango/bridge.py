"""Records go to a log: whatever acknowledges there acknowledges here. See :class:`~mama_spark.bridge.PublisherBridge`.

What is added is what must hold for events that somebody serves later: the log stores them, and each is a message of its
own.
"""

from __future__ import annotations

from dataclasses import replace

from mama_spark.bridge import Ack, Capabilities, EventStyle, PollResult, PublisherBridge, ValidationResult
from mama_spark.errors import ConfigError
from mama_spark.message import MessageBatch


class TangoBridge:
    """
    :param log: publishes to the log; opened and closed with this
    """

    def __init__(self, log: PublisherBridge) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"<TangoBridge on {self._log!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the log; readers of events know nothing of packs, and nobody announces himself there."""
        return replace(self._log.capabilities, packs=False, discovery=False, events=EventStyle.TRANSPORT)

    def open(self) -> None:
        self._log.open()

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """
        :raises ConfigError: what is there is no log: it stores nothing
        """
        prepared = self._log.prepare(batch)
        ack = self._log.capabilities.ack  # may depend on where the topics lead
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

    def close(self) -> None:
        self._log.close()

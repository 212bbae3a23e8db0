"""Chooses how JetStream acknowledges messages: resolves ``ackMode=auto``, and refuses unsafe fast ingest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mama_spark.contracts.errors import ConfigError

from ..jetstream.answers import FAST_SINCE, StreamInfo
from ..settings import NatsSettings


class AckModeChoice:
    """``mode`` of one bridge: ``message``, ``batch`` or ``none``; the first topics resolve ``ackMode=auto``."""

    def __init__(self, settings: NatsSettings, warn: Callable[[str], None]) -> None:
        self._settings, self._warn = settings, warn
        self._automatic = settings.ack_mode == "auto"
        self.mode = "message" if settings.ack_mode == "auto" else settings.ack_mode
        self._chosen = not self._automatic

    @property
    def may_become_batches(self) -> bool:
        """Whether ``auto`` may choose fast ingest: slower with ids, but only both together keep the order."""
        return self._automatic and self._settings.ordered == self._settings.dedup

    def choose(self, version: tuple[int, ...], streams: Sequence[StreamInfo]) -> None:
        """Resolve ``auto``: fast ingest if it may be chosen, and the server's version and the one stream allow it."""
        able = version >= FAST_SINCE and all(s.batched for s in streams)
        if not self._chosen and streams:
            self._chosen = True
            if self.may_become_batches and able and len(streams) == 1:
                self.mode = "batch"
            elif self._settings.ordered:
                names = ", ".join(repr(stream.name) for stream in streams)
                switch = "ackMode=batch" if able else f"allow_batched on stream {names} (nats-server 2.14 or newer)"
                needed = switch if self._settings.dedup else "dedup=true"
                self._warn(f"order=partition without fast ingest sends one message at a time: set {needed}")
        for stream in streams:
            if self.mode == "batch" and not stream.batched:
                self.fall_back_to_messages(f"stream {stream.name!r} does not allow fast ingest")

    def keep_messages(self) -> None:
        self._chosen = True

    def fall_back_to_messages(self, why: str) -> bool:
        """Give up fast ingest and log ``why``; true = messages are acknowledged one by one instead. Only in ``auto``
        and without order, which only fast ingest keeps with many messages in flight."""
        if not self._automatic or self._settings.ordered:
            return False
        if self.mode == "batch":
            self.mode = "message"
            self._warn(f"{why}: going on with an acknowledgement a message")
        return True

    def dedup_is_safe(self, stream: StreamInfo | None) -> bool:
        """Whether fast ingest to this stream acknowledges a repeated id only after its message is committed. A
        replicated stream acknowledges it once the message is proposed to the replicas (409 without fast ingest): a
        resend could be acknowledged, and lost with the leader. An unknown stream may be replicated."""
        return not self._settings.dedup or (stream is not None and stream.replicas == 1)

    def require_safe_dedup(self, name: str | None, stream: StreamInfo | None) -> None:
        """Refuse fast ingest where a repeated id may count as stored too early (ConfigError). With ``order=partition``,
        :class:`~.fast_ingest.FastIngestPublisher` prevents that."""
        if self._settings.ack_mode == "batch" and not self._settings.ordered and not self.dedup_is_safe(stream):
            why = "may be replicated" if stream is None else "is replicated"
            raise ConfigError(
                f"{stream_text(name)} {why}: there fast ingest counts an id as stored before it is, so a resend "
                f"could be acknowledged and lost. Use ackMode=message (or auto), or dedup=false"
            )


def stream_text(name: str | None) -> str:
    """A stream in an error text; None = unknown yet."""
    return f"stream {name!r}" if name else "the stream of the topics"

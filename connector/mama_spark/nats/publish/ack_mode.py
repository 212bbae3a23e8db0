"""How messages to JetStream are acknowledged: what ``ackMode=auto`` becomes, and where fast ingest is too dangerous."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mama_spark.contracts.errors import ConfigError

from ..jetstream.answers import FAST_SINCE, StreamInfo
from ..settings import NatsSettings


class AckModeChoice:
    """``mode`` of one bridge: ``message``, ``batch`` or ``none``; with ``ackMode=auto`` it is known after the first
    topics."""

    def __init__(self, settings: NatsSettings, warn: Callable[[str], None]) -> None:
        self._settings, self._warn = settings, warn
        self._automatic = settings.ack_mode == "auto"
        self.mode = "message" if settings.ack_mode == "auto" else settings.ack_mode
        self._chosen = not self._automatic

    @property
    def may_become_batches(self) -> bool:
        """Whether ``auto`` takes fast ingest where it can: with ids it is slower, but only both together keep the
        order."""
        return self._automatic and self._settings.ordered == self._settings.dedup

    def choose(self, version: tuple[int, ...], streams: Sequence[StreamInfo]) -> None:
        """Resolve ``auto``: fast ingest if ids need no answer each, and the server's version and the streams allow
        it."""
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
        """Fast ingest will not do (any more), for the reason that is logged. True: use acknowledgements per message
        instead. Only in ``auto`` and without order: only fast ingest keeps the order with many messages in flight."""
        if not self._automatic or self._settings.ordered:
            return False
        if self.mode == "batch":
            self.mode = "message"
            self._warn(f"{why}: going on with an acknowledgement a message")
        return True

    def dedup_is_safe(self, stream: StreamInfo | None) -> bool:
        """Whether fast ingest to this stream counts a repeated id as stored only after its message is committed. A
        replicated stream counts it as soon as the message is proposed to the replicas (without fast ingest it answers
        409): a resend would be acknowledged and then lost with the leader. An unknown stream may be replicated."""
        return not self._settings.dedup or (stream is not None and stream.replicas == 1)

    def require_safe_dedup(self, name: str | None, stream: StreamInfo | None) -> None:
        """:raises ConfigError: fast ingest was asked for where a repeated id may be counted as stored too early (never
        with ``order=partition``, where :class:`~.fast_ingest.FastIngestPublisher` prevents it)"""
        if self._settings.ack_mode == "batch" and not self._settings.ordered and not self.dedup_is_safe(stream):
            why = "may be replicated" if stream is None else "is replicated"
            raise ConfigError(
                f"{stream_text(name)} {why}: there fast ingest counts an id as stored before it is, so a resend "
                f"could be acknowledged and lost. Use ackMode=message (or auto), or dedup=false"
            )


def stream_text(name: str | None) -> str:
    """A stream in an error; None: it is not known yet."""
    return f"stream {name!r}" if name else "the stream of the topics"

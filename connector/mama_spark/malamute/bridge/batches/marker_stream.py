"""Markers in a durable stream: messages with a time to live, each stored only if it replaces the one that was read.

The broker keeps the last message of each subject with a time to live also when retention removes it from the stream,
and looks it up by its subject (:mod:`mama_spark.malamute.protocol.ttl`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from mama_spark.contracts.batch_ledger import Marker, MarkerChanged
from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Rejected, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.protocol.ttl import EXPECTED, MARKER, TTL
from mama_spark.options.window import WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from ..bridge import MalamuteBridge
from ..log_queries import LogQueries
from ..logs import MalamuteLog
from ..settings import MalamuteSettings

#: Seconds that a marker is kept.
KEPT = 30 * 86_400


class MarkerStream:
    """For one thread at a time.

    :param queries: open
    :param stream: made when it is missing; the configuration of the broker says that it is durable
    :param timeout: seconds without an answer before :class:`~mama_spark.contracts.errors.Unavailable`
    """

    def __init__(self, queries: LogQueries, settings: MalamuteSettings, stream: str, timeout: float) -> None:
        self._queries, self._name, self._timeout = queries, stream, timeout
        self._settings = replace(settings, stream=stream, dedup=False, resend=False, acks=True, dead_letters=False)
        self._bridge: MalamuteBridge | None = None
        self._log: MalamuteLog | None = None

    def open(self) -> None:
        """:raises ConfigError: the stream is not kept"""
        self._writer()
        try:
            self._log = MalamuteLog(self._queries, self._name)
        except ConfigError as e:
            raise ConfigError(
                f"option exactlyOnce keeps its markers in the stream {self._name!r}, which must be durable: {e}. Give "
                f'it the engine in the configuration of the broker: [[stream]] pattern = "^{self._name}$", engine = '
                '"durable" or "jetstream"; or name another stream (option batchesStream)'
            ) from e

    def get(self, key: str) -> Marker:
        """As the broker has it now."""
        assert self._log is not None, "not open"
        self._writer()  # a broker that was restarted may not know of the stream before a client opens it
        found = self._log.last_of(key)
        if found is None:
            return Marker(0, b"")
        assert found.headers is not None, "a marker has a time to live"
        if MARKER.decode() in dict(found.headers[0].as_py() or ()):  # it has expired
            return Marker(0, b"")
        return Marker(int(found.sequences[0]), bytes(found.payloads[0].as_py()))

    def set(self, key: str, value: bytes, revision: int) -> int:
        """See :meth:`~mama_spark.contracts.batch_ledger.BatchLedger.set_marker`. Where the answer is lost, the marker
        is read, and stored again if it has not changed."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                return self._store(key, value, revision)
            except Rejected as e:
                raise ConfigError(f"option exactlyOnce: the marker {key} is refused: {e}") from e
            except (PublishError, Unavailable) as e:
                self.close()
                if time.monotonic() > until:
                    raise Unavailable(f"the marker {key} is not stored: {e}") from e
            now = self.get(key)
            if now.revision != revision:
                if now.value == value:
                    return now.revision
                raise MarkerChanged(f"the marker {key} has changed")

    def _store(self, key: str, value: bytes, revision: int) -> int:
        headers = {TTL.decode(): [str(KEPT * 1000)], EXPECTED.decode(): [str(revision)]}
        batch = MessageBatch.of([key], [value], [headers])
        bridge = self._writer()
        policy = WindowConfig(max_in_flight=1, wait_timeout=self._timeout, resend_uncertain=False)
        stored = BlockingSender(bridge, policy).store(batch, self._timeout)
        if stored.duplicate[0]:
            raise MarkerChanged(f"the marker {key} has changed")
        return int(stored.sequence[0])

    def _writer(self) -> MalamuteBridge:
        if self._bridge is None:
            bridge = MalamuteBridge(self._settings)
            bridge.open()
            self._bridge = bridge
        return self._bridge

    def close(self) -> None:
        """Never raises; a later call opens it again."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            with suppress(MamaError):
                bridge.close()

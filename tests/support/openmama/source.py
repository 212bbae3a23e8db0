"""A market data server over a log in memory, in a thread; it can be killed and started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLogBridge
from mama_spark.memory.logs import MemoryLogs
from mama_spark.openmama.source.market_data_source import MarketDataSource, PublisherEvent, SourceRules
from mama_spark.openmama.source.server import MarketDataServer
from mama_spark.openmama.source.source_state import SourceState
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.publishing.window.reconnecting import ReconnectingBridge
from mama_spark.recording.log_follower import LogFollower
from mama_spark.recording.log_position import first_position

from .network import message


class MarketDataLab:
    """Source ``S``, or another name.

    :ivar settings: of the peer, for the next start
    :ivar events: of the publisher, since the last start
    :ivar server: the running one
    """

    def __init__(
        self, folder: Path, log: str, url: str, rules: SourceRules, *, name: str = "S", **settings: Any
    ) -> None:
        self._file, self._log, self._rules, self.name = folder / "state", log, rules, name
        self.settings = replace(PeerSettings.from_urls([url]), **settings)
        self.events: list[PublisherEvent] = []
        self.warnings: list[str] = []
        self.server: MarketDataServer

    def store(self, symbol: str, **values: Any) -> None:
        """Append a record to the log."""
        self.store_json(symbol, message(**values))

    def store_json(self, symbol: str, text: bytes) -> None:
        log = MemoryLogs(self._log).log(self._log)
        log.append(MessageBatch.of([f"{self.name}.{symbol}"], [text]))

    def start(self) -> None:
        self.events = []
        self._stop = threading.Event()
        self._state = SourceState(self._file, self.name)
        source = MarketDataSource(self.name, self._state.sender, self._rules, self._state.topics())
        bridge: ReconnectingBridge[RecordLogBridge] = ReconnectingBridge(lambda: MemoryLogs(self._log), 5.0)
        self._follower = LogFollower(bridge, self._log)
        self._peer = OpenMamaPeer(self.settings)
        self.server = MarketDataServer(
            self._peer, source, self._state, self._follower, prefix=self.name,
            say=lambda text: None, warn=self.warnings.append, on_event=self.events.append,
        )  # fmt: skip
        self._follower.start(first_position("saved", self._state.at, self._follower.bounds(), "earliest"))
        self._peer.open()
        self._thread = threading.Thread(target=self.server.run, args=(self._stop.is_set,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """In order."""
        self._stop.set()
        self._thread.join(60)
        self._follower.close()
        self._peer.close()
        self._state.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def served(self, messages: int) -> bool:
        """So many messages were published."""
        return self.server.counts["messages"] == messages and not self.server._unsent

    def callbacks(self) -> list[tuple[str, str]]:
        return [(event.callback, event.symbol) for event in self.events]

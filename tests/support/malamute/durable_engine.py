"""A durable engine, called as by its thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from mama_spark.malamute.broker.engines.durable.engine import DurableEngine

from tests.support.malamute.stored_engine_suite import StoredEngineHarness

SECOND = 1_000_000


class EngineHarness(StoredEngineHarness):
    """One engine, whose clock stands still, and its deliveries.

    :ivar now: microseconds; that have passed, and the time of day but for ``set``
    :ivar set: microseconds by which somebody has set the clock of the day
    """

    engine: DurableEngine

    def __init__(self, folder: Path, name: bytes = b"st", now: int = 1_700_000_000 * SECOND, **settings: Any) -> None:
        self.now, self.set = now, 0
        engine = DurableEngine(name, {"folder": str(folder), **settings})
        engine._clock = lambda: self.now + self.set
        engine._ticks = lambda: self.now
        engine._ttl.tick = lambda: self.now / SECOND
        super().__init__(engine)
        engine.open_for_writing()

    def drain(self) -> None:
        """Call ``idle`` until the engine has nothing to do at this time."""
        while self.engine.idle() == 0.0:
            pass

    def replayed(self, after: int = 0, client: Hashable = "r") -> list[int]:
        """All that is stored behind this position."""
        self.engine.compile(client, b"", after)
        self.engine.flush()
        self.drain()
        return self.delivered(client)


Make = Callable[..., EngineHarness]

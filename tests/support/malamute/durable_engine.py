"""A durable engine, called as by its thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from mama_spark.malamute.broker.engines import Delivery
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension

SECOND = 1_000_000


class EngineHarness:
    """One engine, and its deliveries.

    :ivar now: microseconds; that have passed, and the time of day but for ``set``
    :ivar set: microseconds by which somebody has set the clock of the day
    """

    def __init__(self, folder: Path, name: bytes = b"st", now: int = 1_700_000_000 * SECOND, **settings: Any) -> None:
        self.now, self.set = now, 0
        self.got: list[Delivery] = []
        self.engine = DurableEngine(name, {"folder": str(folder), **settings})
        self.engine._clock = lambda: self.now + self.set
        self.engine._ticks = lambda: self.now
        self.engine._ttl.tick = lambda: self.now / SECOND
        self.engine.start()
        self.engine.open_for_writing()
        self.engine.traffic(self.got.append)

    def publish(
        self, *subjects: bytes, client: Hashable = "w", ids: bool = False, content: bytes = b"x"
    ) -> tuple[AckRun, ...]:
        """Publish one batch; returns the outcomes."""
        for subject in subjects:
            self.engine.accept(
                client, b"writer", subject, [content], Extension(message_id=subject) if ids else NO_EXTENSION
            )
        return self.sync(client)

    def sync(self, client: Hashable = "w") -> tuple[AckRun, ...]:
        runs = self.engine.sync(client)
        self.engine.flush()
        return runs if isinstance(runs, tuple) else runs()

    def drain(self) -> None:
        """Call ``idle`` until the engine has nothing to do at this time."""
        while self.engine.idle() == 0.0:
            pass

    def taken(self, client: Hashable = "r") -> list[int]:
        """Sequences delivered to this client since the last call."""
        found = [d.extension.sequence or 0 for d in self.got if d.client == client and d.extension is not None]
        self.got[:] = [d for d in self.got if d.client != client]
        return found

    def read(self, after: int = 0, client: Hashable = "r", pattern: bytes = b"") -> list[int]:
        self.engine.compile(client, pattern, after)
        self.engine.flush()
        self.drain()
        return self.taken(client)


Make = Callable[..., "EngineHarness"]

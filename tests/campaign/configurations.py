"""How a round of the campaign writes: one of the combinations of options that the sink takes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

BRIDGES = ("NATS R1", "NATS R3", "Malamute")
PARTITIONS = 2
STREAM = "CAMPAIGN"


@dataclass(frozen=True)
class Configuration:
    """
    :ivar bridge: one of :data:`BRIDGES`
    :ivar ack: option ``ackMode``
    :ivar ids: option ``dedup``
    :ivar uncertain: option ``onUncertain``; with ``report``, rows may fail and the write goes on
    :ivar unavailable: option ``onUnavailable``
    :ivar once: option ``exactlyOnce``
    """

    bridge: str
    ack: str
    ids: bool
    pack: str
    ordered: bool
    window: int
    uncertain: str = "resend"
    unavailable: str = "fail"
    once: bool = False

    def __str__(self) -> str:
        parts = [self.bridge, f"ackMode={self.ack}", "ids" if self.ids else "no ids", f"pack={self.pack}"]
        parts += ["ordered"] * self.ordered + [f"window={self.window}"]
        parts += ["exactlyOnce"] * self.once
        parts += [f"onUncertain={self.uncertain}"] * (self.uncertain != "resend")
        parts += [f"onUnavailable={self.unavailable}"] * (self.unavailable != "fail")
        return ", ".join(parts)

    @property
    def tolerant(self) -> bool:
        """A write succeeds though rows failed; else each row of a committed batch is acknowledged."""
        return self.uncertain == "report"

    @property
    def id_window(self) -> float:
        """Seconds for which the stream knows ids."""
        return 1.0 if self.once else 3_600.0

    def options(self, log: str) -> dict[str, str]:
        """Of the sink, without the address."""
        given = {
            "flightLog": log, "flightLogPayload": "all", "ackMode": self.ack, "dedup": str(self.ids).lower(),
            "pack": self.pack, "maxInFlight": str(self.window), "waitTimeout": "1s", "retryBackoff": "50ms",
            "retryMaxBackoff": "1s", "retryDeadline": "6s", "onUnavailable": self.unavailable, "stream": STREAM,
        }  # fmt: skip
        if self.pack != "off":
            given["packMaxRows"] = "20"
        if self.once:
            given["exactlyOnce"] = "true"
        if self.ordered:
            given["order"] = "partition"
        if self.tolerant:
            given |= {"onUncertain": "report", "onError": "log", "errorTolerance": "all"}
        return given

    def rate(self, rows: int, seconds: float) -> dict[str, str]:
        """Options with which a partition of so many rows takes about so long, so that a fault meets it."""
        messages = rows / (20 if self.pack != "off" else 1)
        return {"maxRatePerPartition": f"{max(1.0, messages / seconds):.0f}"}


def draw(chance: random.Random) -> Configuration:
    """A combination that the sink accepts."""
    bridge = chance.choices(BRIDGES, (5, 3, 3))[0]
    ids, pack, window = chance.random() < 0.7, chance.choice(("off", "lines", "arrow")), chance.choice((64, 512, 4096))
    ack, other = "auto", dict[str, Any]()
    if bridge != "Malamute":
        # with ids, a replicated stream takes no batches but those in order
        ack = chance.choice(("message", "batch") if bridge == "NATS R1" or not ids else ("message",))
        if ids and pack == "off" and chance.random() < 0.3:
            return Configuration(bridge, "batch", True, pack, True, window, once=chance.random() < 0.5)
    if not ids and chance.random() < 0.4:
        other["uncertain"] = "report"
    elif chance.random() < 0.3:
        other["unavailable"] = "wait"
    once = ids and ack == "message" and chance.random() < 0.5
    return Configuration(bridge, ack, ids, pack, False, window, once=once, **other)

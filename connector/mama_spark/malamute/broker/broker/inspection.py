"""Lists a broker's clients and streams for users; read in the broker's thread."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Protocol

from ..session.engine_backlog import EngineBacklog
from ..session.state_machine import ServerMachine
from .traffic_counters import SocketCounters


class BrokerState(Protocol):
    """The state of the broker's thread that this module and :mod:`.metrics` read."""

    machine: ServerMachine
    counters: SocketCounters

    @property
    def backlogs(self) -> dict[bytes, EngineBacklog]: ...

    def engine_of(self, stream: bytes) -> str: ...


def clients_of(broker: BrokerState, now: float) -> list[dict[str, Any]]:
    """One dictionary per client, longest silent first; ``silent`` in seconds."""
    return [
        {
            "address": _text(client.address),
            "writes": None if client.write_stream is None else _text(client.write_stream),
            "reads": {_text(stream): len(patterns) for stream, patterns in client.subscriptions.items()},
            "offers": len(client.offers),
            "features": [feature.name for feature in client.features],
            "credit": client.credit.left,
            "blocked": client.blocked,
            "queued": client.queued,
            "queued_octets": client.queue.size + client.lent_deliveries.size + client.replies.size,
            "silent": round(max(0.0, now - client.last_heard), 3),
        }
        for client in broker.machine.clients
    ]


def streams_of(broker: BrokerState) -> list[dict[str, Any]]:
    """One dictionary per stream, by name."""
    machine = broker.machine
    readers = Counter(stream for client in machine.clients for stream in client.subscriptions)
    writers = Counter(client.write_stream for client in machine.clients if client.write_stream is not None)
    return [
        {
            "stream": _text(stream),
            "engine": broker.engine_of(stream),
            "stored": stream in machine.streams.stored,
            "open": stream not in machine.streams.opening,
            "readers": readers[stream],
            "writers": writers[stream],
            "batches": len(broker.backlogs.get(stream, ())),
            "full": stream in machine.streams.full,
        }
        for stream in sorted(machine.streams)
    ]


def as_json(rows: object) -> str:
    return json.dumps(rows, ensure_ascii=False) + "\n"


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")

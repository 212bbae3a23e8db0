"""Counters and gauges of a broker, and lists of its clients and streams. Read in the broker's thread."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ....telemetry.exposition import Labels, Metric

if TYPE_CHECKING:
    from .loop import BrokerLoop

#: Of the session machine.
_COUNTERS = {
    "malformed": ("malformed_frames", "frames that are no command"),
    "refused": ("refused_commands", "commands of clients that had not opened (ERROR 500)"),
    "dropped": ("dropped_clients", "clients that were dropped, for whatever reason"),
    "expired": ("expired_clients", "dropped clients that were silent for too long"),
    "unclosed": (
        "unclosed_senders",
        "clients that had sent and left without CLOSE: their unsent messages are lost",
    ),
    "repeats": ("unanswered_repeats", "repeated WRITE, READ and OFFER that were not answered"),
    "lost_deliveries": ("lost_deliveries", "deliveries that the queue of a client did not hold"),
    "lost_letters": ("lost_letters", "mail and requests that were lost for lack of room"),
    "lost_sends": ("lost_sends", "messages to streams whose backlog was full"),
}
#: Of the broker's thread.
_TRAFFIC = {
    "received_messages": "messages from clients, commands of all kinds",
    "received_bytes": "bytes of their frames",
    "sent_messages": "messages to clients, answers of all kinds",
    "sent_bytes": "bytes of their frames",
    "lost_events": "events that the stream of events did not hold",
    "refused_logins": "connections that the security refused",
}


def measure(broker: BrokerLoop) -> list[Metric]:
    machine = broker.machine
    clients, mailboxes, requests = machine.clients, machine.mailboxes.mailboxes, machine.mailboxes.requests
    publishers = machine.publishing.publishers
    backlogs = [stream.backlog for stream in broker.engines.streams.values()]
    traffic, session = asdict(broker.counters), asdict(machine.clients.counters)
    found = [_metric(f"{name}_total", text, traffic[name]) for name, text in _TRAFFIC.items()]
    found += [_metric(f"{name}_total", text, session[key]) for key, (name, text) in _COUNTERS.items()]
    engines = Counter(broker.engine_of(stream) for stream in machine.streams)
    found += [
        _metric("clients", "clients that are connected", len(clients)),
        _metric("publishers", "clients that send to streams within a credit", publishers),
        _metric("streams", "streams, by engine", {(("engine", name),): n for name, n in sorted(engines.items())}),
        _metric("full_streams", "streams whose backlog is full", len(machine.streams.full)),
        _metric("subscriptions", "patterns that clients read",
            sum(len(patterns) for c in clients for patterns in c.subscriptions.values())
        ),
        _metric("offers", "services that clients offer", sum(len(c.offers) for c in clients)),
        _metric("blocked_clients", "clients whose socket takes no more now", sum(c.blocked for c in clients)),
        _metric("held_deliveries", "deliveries that wait for clients", sum(c.queued for c in clients)),
        _metric("queue_bytes", "bytes that wait for clients", sum(c.queued_bytes for c in clients)),
        _metric("letters", "mail and requests that wait for a receiver", {
            (("kind", "mailbox"),): len(mailboxes), (("kind", "service"),): len(requests)
        }),
        _metric("letter_bytes", "bytes of their content", {
            (("kind", "mailbox"),): mailboxes.size, (("kind", "service"),): requests.size
        }),
        _metric("engine_batches", "batches that wait for engines", sum(map(len, backlogs))),
        _metric("engine_bytes", "bytes that wait for engines that are behind",
            sum(backlog.queued_bytes for backlog in backlogs)
        ),
    ]  # fmt: skip
    return found


def summary(metrics: Iterable[Metric]) -> str:
    """One line for a log: the metrics that are not 0."""
    values = {metric.name.removeprefix("malamute_"): sum(n for _, n in metric.samples) for metric in metrics}
    return ", ".join(f"{name.removesuffix('_total').replace('_', ' ')} {n:.15g}" for name, n in values.items() if n)


def _metric(name: str, help: str, value: float | Mapping[Labels, float]) -> Metric:
    samples = value if isinstance(value, Mapping) else {(): value}
    return Metric(f"malamute_{name}", help, tuple(samples.items()))


def clients_of(broker: BrokerLoop, now: float) -> list[dict[str, Any]]:
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
            "queued_bytes": client.queued_bytes,
            "silent": round(max(0.0, now - client.last_heard), 3),
        }
        for client in broker.machine.clients
    ]


def streams_of(broker: BrokerLoop) -> list[dict[str, Any]]:
    machine = broker.machine
    readers = Counter(stream for client in machine.clients for stream in client.subscriptions)
    writers = Counter(client.write_stream for client in machine.clients if client.write_stream is not None)
    return [
        {
            "stream": _text(stream),
            "engine": broker.engine_of(stream),
            "stored": machine.streams[stream].stored,
            "open": stream not in machine.streams.opening,
            "readers": readers[stream],
            "writers": writers[stream],
            "batches": len(broker.engines.streams[stream].backlog) if stream in broker.engines.streams else 0,
            "full": stream in machine.streams.full,
        }
        for stream in sorted(machine.streams)
    ]


def as_json(rows: object) -> str:
    return json.dumps(rows, ensure_ascii=False) + "\n"


def _text(raw_bytes: bytes) -> str:
    return raw_bytes.decode("utf-8", "backslashreplace")

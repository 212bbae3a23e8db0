"""What a broker tells of itself: counters and gauges, and lists of its clients and streams.

:func:`measure`, :func:`clients_of` and :func:`streams_of` read the machine in the broker's thread; the rest is for
whoever asks. :class:`MetricsServer` serves them over HTTP: ``/metrics`` as text in the exposition format of Prometheus
(version 0.0.4), ``/clients`` and ``/streams`` as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol

from mama_spark.errors import ConfigError, MamaError, Unavailable

from ..session.backlog import Backlog
from ..session.state_machine import ServerMachine

log = logging.getLogger(__name__)

TEXT = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """:ivar kind: ``counter`` or ``gauge``
    :ivar samples: value by labels
    """

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


class BrokerState(Protocol):
    """A broker's thread, as far as it is read here."""

    machine: ServerMachine
    backlogs: dict[bytes, Backlog]
    tally: dict[str, int]

    def engine_of(self, stream: bytes) -> str: ...


#: name in the machine -> name of the metric, what it counts
_COUNTERS = {
    "malformed": ("malformed_frames", "frames that are no command"),
    "refused": ("refused_commands", "commands of clients that had not opened (ERROR 500)"),
    "dropped": ("dropped_clients", "clients that were dropped, for whatever reason"),
    "expired": ("expired_clients", "of them, those that were silent for too long"),
    "repeats": ("unanswered_repeats", "repeated WRITE, READ and OFFER that were not answered"),
    "lost_deliveries": ("lost_deliveries", "deliveries that the queue of a client did not hold"),
    "lost_letters": ("lost_letters", "mail and requests that were lost for lack of room"),
    "lost_sends": ("lost_sends", "messages to streams whose backlog was full"),
}
_TALLIES = {
    "received_messages": "messages from clients, commands of all kinds",
    "received_octets": "octets of their frames",
    "sent_messages": "messages to clients, answers of all kinds",
    "sent_octets": "octets of their frames",
    "lost_events": "events that the stream of events did not hold",
    "refused_logins": "connections that the security refused",
}


def measure(told: BrokerState) -> list[Metric]:
    """All counters and gauges."""
    machine = told.machine
    clients = machine.clients.values()
    found = [_counter(name, text, told.tally.get(name, 0)) for name, text in _TALLIES.items()]
    found += [_counter(name, text, machine.counters[key]) for key, (name, text) in _COUNTERS.items()]
    engines = Counter(told.engine_of(stream) for stream in machine.streams)
    found += [
        _gauge("clients", "clients that are connected", {(): len(clients)}),
        _gauge("publishers", "of them, those that send to streams and keep to a credit", {(): machine.publishers}),
        _gauge("streams", "streams, by engine", {(("engine", name),): n for name, n in sorted(engines.items())}),
        _gauge("full_streams", "streams whose backlog is full", {(): len(machine.full)}),
        _gauge("subscriptions", "patterns that clients read", {
            (): sum(len(patterns) for c in clients for patterns in c.reads.values())
        }),
        _gauge("offers", "services that clients offer", {(): sum(len(c.offers) for c in clients)}),
        _gauge("blocked_clients", "clients whose socket takes no more now", {(): sum(c.blocked for c in clients)}),
        _gauge("held_deliveries", "deliveries that wait for clients", {
            (): sum(len(c.queue) + len(c.held) + len(c.replies) for c in clients)
        }),
        _gauge("queue_octets", "octets that wait for clients", {
            (): sum(c.queue.size + c.held.size + c.replies.size for c in clients)
        }),
        _gauge("letters", "mail and requests that wait for a receiver", {
            (("kind", "mailbox"),): len(machine.mailboxes), (("kind", "service"),): len(machine.requests)
        }),
        _gauge("letter_octets", "octets of their content", {
            (("kind", "mailbox"),): machine.mailboxes.size, (("kind", "service"),): machine.requests.size
        }),
        _gauge("engine_batches", "batches that wait for engines", {(): sum(map(len, told.backlogs.values()))}),
        _gauge("engine_octets", "octets that wait for engines that are behind", {
            (): sum(backlog.octets for backlog in told.backlogs.values())
        }),
    ]  # fmt: skip
    return found


def clients_of(told: BrokerState, now: float) -> list[dict[str, Any]]:
    """What is known of each client, longest silent first; ``silent`` in seconds."""
    return [
        {
            "address": _text(client.address),
            "writes": None if client.stream is None else _text(client.stream),
            "reads": {_text(stream): len(patterns) for stream, patterns in client.reads.items()},
            "offers": len(client.offers),
            "features": [feature.name for feature in client.features],
            "credit": client.credit,
            "blocked": client.blocked,
            "queued": len(client.queue) + len(client.held) + len(client.replies),
            "queued_octets": client.queue.size + client.held.size + client.replies.size,
            "silent": round(max(0.0, now - client.seen), 3),
        }
        for client in told.machine.clients.values()
    ]


def streams_of(told: BrokerState) -> list[dict[str, Any]]:
    """What is known of each stream, by name."""
    machine = told.machine
    readers = Counter(stream for client in machine.clients.values() for stream in client.reads)
    writers = Counter(client.stream for client in machine.clients.values() if client.stream is not None)
    return [
        {
            "stream": _text(stream),
            "engine": told.engine_of(stream),
            "stored": stream in machine.stored,
            "open": stream not in machine.opening,
            "readers": readers[stream],
            "writers": writers[stream],
            "batches": len(told.backlogs.get(stream, ())),
            "full": stream in machine.full,
        }
        for stream in sorted(machine.streams)
    ]


def text(metrics: Iterable[Metric]) -> str:
    """In the exposition format of Prometheus."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, value in metric.samples:
            shown = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels)
            lines.append(f"{metric.name}{{{shown}}} {value:g}" if shown else f"{metric.name} {value:.15g}")
    return "\n".join([*lines, ""])


def summary(metrics: Iterable[Metric]) -> str:
    """One line for a log: what is not 0."""
    values = {metric.name.removeprefix("malamute_"): sum(n for _, n in metric.samples) for metric in metrics}
    return ", ".join(f"{name.removesuffix('_total').replace('_', ' ')} {n:.15g}" for name, n in values.items() if n)


def _counter(name: str, told: str, value: float) -> Metric:
    return Metric(f"malamute_{name}_total", "counter", told, (((), value),))


def _gauge(name: str, told: str, samples: Mapping[Any, float]) -> Metric:
    return Metric(f"malamute_{name}", "gauge", told, tuple(samples.items()))


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


class MetricsServer:
    """Serves what ``pages`` make, by path: content type and text.

    :param address: ``host:port``; with port 0 the system chooses
    :raises ConfigError: that is no address
    :raises Unavailable: it cannot be bound
    """

    def __init__(self, address: str, pages: Mapping[str, tuple[str, Callable[[], str]]]) -> None:
        host, sep, port = address.rpartition(":")
        if not sep or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"metrics are served at host:port, not at {address!r}")
        try:
            self._server = _Server((host.strip("[]"), int(port)), pages)
        except OSError as e:
            raise Unavailable(f"cannot serve metrics at {address}: {e.strerror or e}") from e
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="mama-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], pages: Mapping[str, tuple[str, Callable[[], str]]]) -> None:
        self.pages = pages
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that hangs up, for the most part: nothing to fill the broker's output with."""
        log.warning("a look at the metrics from %s failed: %s", client_address[0], sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0  # for a peer that says nothing

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.split("?", 1)[0])
        if page is None:
            self._answer(404, "text/plain", f"there are {', '.join(self.server.pages)}\n")
            return
        kind, make = page
        try:
            self._answer(200, kind, make())
        except MamaError as e:
            self._answer(503, "text/plain", f"{e}\n")

    def _answer(self, status: int, kind: str, body: str) -> None:
        octets = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(octets)))
        self.end_headers()
        self.wfile.write(octets)

    def log_message(self, format: str, *values: object) -> None:
        """Nobody wants a line for each look."""


def as_json(rows: object) -> str:
    return json.dumps(rows, ensure_ascii=False) + "\n"

"""Metrics of a broker: counters and gauges, read in its thread, and their text for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from mama_spark.errors import ConfigError

from .inspection import BrokerState

#: Content type of :func:`exposition`.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """:ivar kind: ``counter`` or ``gauge``
    :ivar samples: value by labels
    """

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


#: Counters of the session machine: name of the metric, what it counts.
_COUNTERS = {
    "malformed": ("malformed_frames", "frames that are no command"),
    "refused": ("refused_commands", "commands of clients that had not opened (ERROR 500)"),
    "dropped": ("dropped_clients", "clients that were dropped, for whatever reason"),
    "expired": ("expired_clients", "of them, those that were silent for too long"),
    "unclosed": (
        "unclosed_senders",
        "clients that had sent and went away without CLOSE: what they still had to send is lost",
    ),
    "repeats": ("unanswered_repeats", "repeated WRITE, READ and OFFER that were not answered"),
    "lost_deliveries": ("lost_deliveries", "deliveries that the queue of a client did not hold"),
    "lost_letters": ("lost_letters", "mail and requests that were lost for lack of room"),
    "lost_sends": ("lost_sends", "messages to streams whose backlog was full"),
}
#: Counters of the broker's thread, under their names: what each counts.
_TRAFFIC = {
    "received_messages": "messages from clients, commands of all kinds",
    "received_octets": "octets of their frames",
    "sent_messages": "messages to clients, answers of all kinds",
    "sent_octets": "octets of their frames",
    "lost_events": "events that the stream of events did not hold",
    "refused_logins": "connections that the security refused",
}


def measure(broker: BrokerState) -> list[Metric]:
    """All counters and gauges."""
    machine = broker.machine
    clients, mailboxes, requests = machine.clients, machine.mailboxes.mailboxes, machine.mailboxes.requests
    publishers = machine.publish_windows.publishers
    traffic, session = asdict(broker.counters), asdict(machine.counters)
    found = [_counter(name, text, traffic[name]) for name, text in _TRAFFIC.items()]
    found += [_counter(name, text, session[key]) for key, (name, text) in _COUNTERS.items()]
    engines = Counter(broker.engine_of(stream) for stream in machine.streams)
    found += [
        _gauge("clients", "clients that are connected", {(): len(clients)}),
        _gauge("publishers", "of them, those that send to streams and keep to a credit", {(): publishers}),
        _gauge("streams", "streams, by engine", {(("engine", name),): n for name, n in sorted(engines.items())}),
        _gauge("full_streams", "streams whose backlog is full", {(): len(machine.streams.full)}),
        _gauge("subscriptions", "patterns that clients read", {
            (): sum(len(patterns) for c in clients for patterns in c.subscriptions.values())
        }),
        _gauge("offers", "services that clients offer", {(): sum(len(c.offers) for c in clients)}),
        _gauge("blocked_clients", "clients whose socket takes no more now", {(): sum(c.blocked for c in clients)}),
        _gauge("held_deliveries", "deliveries that wait for clients", {
            (): sum(len(c.queue) + len(c.lent_deliveries) + len(c.replies) for c in clients)
        }),
        _gauge("queue_octets", "octets that wait for clients", {
            (): sum(c.queue.size + c.lent_deliveries.size + c.replies.size for c in clients)
        }),
        _gauge("letters", "mail and requests that wait for a receiver", {
            (("kind", "mailbox"),): len(mailboxes), (("kind", "service"),): len(requests)
        }),
        _gauge("letter_octets", "octets of their content", {
            (("kind", "mailbox"),): mailboxes.size, (("kind", "service"),): requests.size
        }),
        _gauge("engine_batches", "batches that wait for engines", {(): sum(map(len, broker.backlogs.values()))}),
        _gauge("engine_octets", "octets that wait for engines that are behind", {
            (): sum(backlog.octets for backlog in broker.backlogs.values())
        }),
    ]  # fmt: skip
    return found


def exposition(metrics: Iterable[Metric]) -> str:
    """The metrics in the text format of Prometheus, :data:`CONTENT_TYPE`.

    :raises ConfigError: the library prometheus-client is not installed
    """
    client = prometheus_client()
    registry = client.CollectorRegistry()
    registry.register(_Collector(metrics))
    text: str = client.generate_latest(registry).decode()
    return text


def prometheus_client() -> Any:
    """The library prometheus-client, imported on first use.

    :raises ConfigError: it is not installed
    """
    try:
        import prometheus_client
    except ImportError as e:
        raise ConfigError('metrics need the library prometheus-client: pip install "mama-spark[malamute]"') from e
    return prometheus_client


class _Collector:
    """A snapshot of metrics in the library's collector interface."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import Metric as Family

        for name, kind, help, samples in self._metrics:
            family = Family(name.removesuffix("_total"), help, kind)  # the library adds the suffix
            for labels, value in samples:
                family.add_sample(name, dict(labels), value)
            yield family


def summary(metrics: Iterable[Metric]) -> str:
    """One line for a log: the metrics that are not 0."""
    values = {metric.name.removeprefix("malamute_"): sum(n for _, n in metric.samples) for metric in metrics}
    return ", ".join(f"{name.removesuffix('_total').replace('_', ' ')} {n:.15g}" for name, n in values.items() if n)


def _counter(name: str, help: str, value: float) -> Metric:
    return Metric(f"malamute_{name}_total", "counter", help, (((), value),))


def _gauge(name: str, help: str, samples: Mapping[Any, float]) -> Metric:
    return Metric(f"malamute_{name}", "gauge", help, tuple(samples.items()))

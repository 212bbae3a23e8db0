"""A NATS log, what it is filled with, and what was read of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.log_suite import LoggedRecord
from mama_spark.testing.waiting import TIMEOUT

from tests.support.nats.nats_servers import Admin

#: More than a reader fetches ahead, so that the server still has some when the first batch is there.
MANY, SIZE = 14_000, 1000


_names = (f"S{i}" for i in count())


def fill(url: str, name: str, n: int = MANY, size: int = SIZE, topics: int = 2) -> None:
    """``n`` records, each different."""
    bridge = NatsBridge(NatsSettings(tuple(url.split(",")), stream=name, dedup=False))
    bridge.open()
    pad = b"." * size
    publish(
        bridge,
        MessageBatch.of([f"{name}.{i % topics}" for i in range(n)], [(b"%d" % i + pad)[:size] for i in range(n)]),
    )
    bridge.close()


@contextmanager
def record_log(url: str, name: str) -> Iterator[RecordLog]:
    """A new stream of the topics ``name.>``, in lower case, as a log."""
    with Admin(url) as admin:
        admin.create_stream(name, [f"{name.lower()}.>"])
        bridge = log_bridge(SubscribeOptions.parse({"url": url, "stream": name}), TIMEOUT)
        bridge.open()
        yield bridge.log(name)
        bridge.close()
        admin.api(f"STREAM.DELETE.{name}")


@contextmanager
def reading(url: str, timeout: float = 60.0, **settings: Any) -> Iterator[NatsLogs]:
    logs = NatsLogs(NatsSettings(tuple(url.split(",")), **settings), timeout)
    logs.open()
    try:
        yield logs
    finally:
        logs.close()


def consumers(admin: Admin, name: str) -> list[str]:
    return list(admin.api(f"CONSUMER.NAMES.{name}").get("consumers") or [])


def held_to(found: list[LoggedRecord], n: int = MANY) -> None:
    assert [r.sequence for r in found] == list(range(1, n + 1))
    assert [int(r.payload.partition(b".")[0]) for r in found] == list(range(n))

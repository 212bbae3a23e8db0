"""What is shown of the streams of a server, and of who reads them."""

from __future__ import annotations

from typing import Any

from mama_spark.contracts.record_log import ReaderStatus
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.settings import NatsSettings


def test_consumers_of_our_own_reads_and_of_the_server_are_no_readers() -> None:
    stream = {"config": {"name": "S"}, "state": {"consumer_count": 4}}
    consumers = [{"name": name, "num_pending": 7} for name in ("audit", "mama-0123", "JS_SRC_x", "JS_MIRROR_x")]
    pages: dict[str, list[Any]] = {"STREAM.LIST": [stream], "CONSUMER.LIST.S": consumers}
    logs = NatsLogs(NatsSettings())
    logs.api.listed = lambda call, *_: iter(pages[call])  # type: ignore[method-assign]
    (status,) = logs.statuses()
    assert status.readers == (ReaderStatus("audit", 7, 0),)

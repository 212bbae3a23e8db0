"""The pages on the managed publisher: their examples run, and they list every parameter."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.api import PublishOptions, RetryConfig
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher

from tests.support.nats.nats_servers import Admin
from tests.support.publisher_harness import NatsPublisherHarness

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = (ROOT / "docs" / "how-to" / "publish-from-plain-python.md").read_text(encoding="utf-8")
EXPLANATION = (ROOT / "docs" / "explanation" / "managed-publisher.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", HOW_TO)


def test_the_example_runs(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        names: dict[str, Any] = {}
        exec(EXAMPLES[0].replace("nats://127.0.0.1:4222", nats_server.url), names)
        assert [(ack.stream, ack.sequence) for ack in names["acks"]] == [("ORDERS", i) for i in range(1, 11)]
        assert [m.payload for m in admin.messages("ORDERS")] == [b"hello"] * 10


def test_the_example_for_plain_threads_runs(nats_server: NatsServer) -> None:
    harness = NatsPublisherHarness(nats_server)
    try:
        harness.admin.create_stream("ORDERS", ["orders.>"])
        names: dict[str, Any] = {
            "js": harness.target(),
            "ManagedPublisher": ManagedPublisher,
            "RetryConfig": RetryConfig,
            "PublishOptions": PublishOptions,
        }
        exec(EXAMPLES[1], names)
        assert (names["ack"].stream, names["ack"].sequence) == ("ORDERS", 1)
    finally:
        harness.close()


def test_parameters_and_defaults_are_those_of_the_class() -> None:
    parameters = [name for name in inspect.signature(ManagedPublisher).parameters if name != "self"]
    table = EXPLANATION[EXPLANATION.index("## Parameters") : EXPLANATION.index("## Publishing")]
    assert sorted(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`[^|]*)\|", table)))) == sorted(parameters)

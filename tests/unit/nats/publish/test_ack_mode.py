"""Where fast ingest is refused, for an id would count as stored before its message is; where an order is slow without
it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.jetstream.answers import StreamInfo
from mama_spark.nats.publish.ack_mode import AckModeChoice
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each

ALLOWED = "allow_batched on stream {} (nats-server 2.14 or newer)"


def stream(replicas: int) -> StreamInfo:
    return StreamInfo.of({"config": {"name": "S", "num_replicas": replicas}, "state": {}})


@each(
    "given, known, refused",
    [
        pytest.param({}, stream(3), "is replicated", id="replicated"),
        pytest.param({}, None, "may be replicated", id="unknown"),
        pytest.param({}, stream(1), "", id="one server"),
        pytest.param({"dedup": False}, stream(3), "", id="no ids"),
        pytest.param({"ordered": True}, stream(3), "", id="in order"),
        pytest.param({"ack_mode": "message"}, stream(3), "", id="a message at a time"),
    ],
)
def test_ids_in_batches_without_order_need_a_stream_on_one_server(
    given: dict[str, Any], known: StreamInfo | None, refused: str
) -> None:
    acks = AckModeChoice(NatsSettings(**{"ack_mode": "batch", **given}), warn=lambda _: None)
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        acks.require_safe_dedup("S", known)


@each(
    "given, version, batched, needed",
    [
        pytest.param({}, (2, 12), [False], ALLOWED.format("'S0'"), id="an older server"),
        pytest.param({}, (2, 14), [True, False], ALLOWED.format("'S0', 'S1'"), id="a stream does not allow it"),
        pytest.param({}, (2, 14), [True, True], "ackMode=batch", id="two streams"),
        pytest.param({"dedup": False}, (2, 12), [False], "dedup=true", id="no ids"),
        pytest.param({}, (2, 14), [True], "", id="fast"),
        pytest.param({"ack_mode": "message"}, (2, 12), [False], "", id="asked for"),
        pytest.param({"ordered": False}, (2, 12), [False], "", id="no order"),
    ],
)
def test_auto_says_once_what_makes_an_order_fast(
    given: dict[str, Any], version: tuple[int, int], batched: list[bool], needed: str
) -> None:
    configs = [{"name": f"S{n}", "allow_batched": on} for n, on in enumerate(batched)]
    streams = [StreamInfo.of({"config": config, "state": {}}) for config in configs]
    said: list[str] = []
    acks = AckModeChoice(NatsSettings(**{"ordered": True, **given}), said.append)
    for _ in range(2):
        acks.choose(version, streams)
    assert said == [f"order=partition without fast ingest sends one message at a time: set {needed}"] * bool(needed)

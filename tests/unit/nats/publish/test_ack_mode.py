"""Where fast ingest is refused, for an id would count as stored before its message is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.jetstream.answers import StreamInfo
from mama_spark.nats.publish.ack_mode import AckModeChoice
from mama_spark.nats.settings import NatsSettings

from tests.support.tables import each


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

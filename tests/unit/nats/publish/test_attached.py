"""Publishing over a client of the caller, without a server."""

from __future__ import annotations

import asyncio

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed
from mama_spark.contracts.message import MessageBatch
from mama_spark.nats import AttachedBridge
from mama_spark.nats.publish.attached import _client_rows, _Header
from nats.aio.client import Client


def test_a_loop_of_the_caller_that_was_closed_is_told() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    bridge = AttachedBridge.attach(object(), client=Client(), loop=loop)
    with pytest.raises(BackgroundTaskFailed, match="has ended"):
        bridge.open()
    bridge.close()


def test_a_header_that_does_not_repeat_has_its_plain_name() -> None:
    ((*_, headers),) = _client_rows(MessageBatch.of(["s"], [b""], [{"A": ["1", "2"]}], ["id"]), "inbox.", 0)
    assert headers is not None
    assert [type(name) for name in headers] == [str, str, _Header]

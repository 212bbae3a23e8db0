"""Publishing over a client of the caller, without a server."""

from __future__ import annotations

import asyncio

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed
from mama_spark.nats import AttachedBridge
from nats.aio.client import Client


def test_a_loop_of_the_caller_that_was_closed_is_told() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    bridge = AttachedBridge.attach(object(), client=Client(), loop=loop)
    with pytest.raises(BackgroundTaskFailed, match="has ended"):
        bridge.open()
    bridge.close()

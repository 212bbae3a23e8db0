"""A broker, clients of it, and a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.client.client import MalamuteClient

from tests.support.malamute.malamute_clients import PATIENCE, Make, Scripted, start


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = start()
    yield broker
    broker.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(address: str = "", **options: Any) -> MalamuteClient:
            options.setdefault("timeout", PATIENCE)
            return stack.enter_context(MalamuteClient(broker.endpoint, address, **options))

        yield make


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()
    yield script
    script.close()

"""Brokers with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mama_spark.malamute.broker.broker import loop as broker_loop

from tests.support.clocks import Clock
from tests.support.malamute.raw_malamute_clients import Make, Site


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    sites: list[Site] = []
    clock = Clock()
    monkeypatch.setattr(broker_loop, "time", clock)

    def made(**values: Any) -> Site:
        sites.append(Site(clock, **values))
        return sites[-1]

    yield made
    for site in sites:
        site.close()

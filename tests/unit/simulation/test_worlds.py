"""Seeds in simulated worlds: nothing is violated, and each can be run again."""

from __future__ import annotations

import pytest
from mama_spark.discovery import lease_keeper
from mama_spark.nats.connection import pool, socket_driver
from mama_spark.nats.publish import bridge
from mama_spark.publishing import batch_publisher
from mama_spark.publishing.window.send_loop import SendLoop

from tests.simulation.modules import simulated
from tests.simulation.worlds import WORLDS, run


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_violated(world: str) -> None:
    with simulated():
        found = {seed: run(world, seed).violations for seed in range(200)}
    assert {seed: violations for seed, violations in found.items() if violations} == {}


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_the_same_run_again(world: str) -> None:
    with simulated():
        first, again, other = run(world, 5, tracing=True), run(world, 5, tracing=True), run(world, 6, tracing=True)
        assert first.lines == again.lines
        assert first.fingerprint == again.fingerprint == run(world, 5).fingerprint
        assert first.lines != other.lines


def test_the_product_sees_simulated_modules_and_has_its_own_back_afterwards() -> None:
    def seen() -> list[object]:
        return [
            vars(batch_publisher)["time"],
            vars(batch_publisher)["threading"],
            vars(socket_driver)["NonBlockingSocket"],
            vars(pool)["POOL"],
            vars(bridge)["POOL"],  # imported from there
            vars(lease_keeper)["_lock"],  # made at the import
            (SendLoop.__init__.__kwdefaults__ or {})["clock"],
        ]

    before = seen()
    with simulated():
        inside = seen()
    assert [a is b for a, b in zip(before, inside, strict=True)] == [False] * 7
    assert inside[3] is inside[4]
    assert seen() == before

"""Seeds in simulated worlds: nothing is violated, and each can be run again."""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import mama_spark
import pytest
from mama_spark.discovery import lease_keeper
from mama_spark.nats.connection import pool, socket_driver
from mama_spark.nats.publish import bridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing import batch_publisher
from mama_spark.publishing.window.send_loop import SendLoop

from tests.simulation import __main__ as command
from tests.simulation.jetstream_api import JetStream
from tests.simulation.kernel import Scheduler
from tests.simulation.modules import simulated
from tests.simulation.nats.writers import Write
from tests.simulation.worlds import WORLDS, Shape, run

#: How many seeds of each world: 2,000 in all, most in those that cost least. `make explore` runs 9,100 of each.
_SEEDS = {"publish": 1680, "recorder": 50, "discovery": 150}
_FEW = 15


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_violated(world: str) -> None:
    with simulated():
        found = {seed: run(world, seed).violations for seed in range(_SEEDS.get(world, _FEW))}
    assert {seed: violations for seed, violations in found.items() if violations} == {}


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_the_same_run_again(world: str) -> None:
    with simulated():
        first, again = run(world, 5, tracing=True), run(world, 5, tracing=True)
    assert first.lines == again.lines
    assert first.fingerprint == again.fingerprint


def test_another_seed_is_another_run_and_a_trace_changes_nothing() -> None:
    with simulated():
        first, other, plain = run("publish", 5, tracing=True), run("publish", 6, tracing=True), run("publish", 5)
    assert first.lines != other.lines
    assert first.fingerprint == plain.fingerprint


def test_a_seed_that_fails_is_printed_with_the_smallest_world_and_fails_in_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def world(scheduler: Scheduler, shape: Shape) -> Callable[[], Iterable[str]]:
        fails = shape.rows >= 3 and shape.faults >= 2 and shape.partitions >= 2
        return lambda: [f"{shape.rows} rows"] if fails else []

    def ran(*more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["simulation", "--world", "publish", "--seed", "4", *more])
        return command.main(), capsys.readouterr().out

    monkeypatch.setitem(WORLDS, "publish", world)
    status, said = ran()
    smallest = "--rows 3 --partitions 2 --max-faults 2"
    assert (status, f"--seed 4 {smallest}, too" in said) == (1, True), said
    status, said = ran(*smallest.split())
    assert (status, "publish, seed 4: 3 rows" in said) == (1, True), said
    assert ran("--rows", "2")[0] == ran("--partitions", "1")[0] == ran("--max-faults", "1")[0] == 0


def test_connections_that_nobody_has_and_rows_that_were_stored_twice_for_a_while_are_violations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with simulated():
        monkeypatch.setattr(pool.NatsPool, "give_back", lambda *_: None)
        assert "connections, and 0 in its pool" in "; ".join(run("exactly-once", 5, Shape(2, 0)).violations)
        with Scheduler(1) as scheduler:
            stream = JetStream().create("S", ["t.>"], 0.0)
            write = Write(scheduler, NatsSettings(("nats://nats:4222",)), [("t.1", b"once"), ("t.1", b"twice")] * 2, 1)
            scheduler.spawn("watch", lambda: write.watch([stream]), background=True)
            for payload in (b"once", b"twice", b"once", b"twice", b"twice"):
                stream.store("t.1", {}, payload, 0.0)
            scheduler.call_at(1.5, lambda: stream.lose_tail(1))
            scheduler.spawn("query", lambda: scheduler.sleep(3.0))
            scheduler.run()
            stored = Counter(m.payload for m in stream.messages.values())
            assert "stored more than once: [(b'twice', 1)]" in list(write.violations(stored))


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


_LATE = """
import time as clock
from random import Random
from threading import Lock

lock = Lock()

class Late:
    guard = Lock()

    def now(self, read=clock.monotonic, *, again=clock.monotonic):
        with lock, self.guard:
            return read(), again(), clock.monotonic(), Random().random()
"""


def test_a_module_that_is_imported_meanwhile_is_simulated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late.py").write_text(_LATE)
    monkeypatch.setattr(mama_spark, "__path__", [*mama_spark.__path__, str(tmp_path)])
    with simulated():
        late = importlib.import_module("mama_spark.late").Late()
        with Scheduler(3) as scheduler:
            first = late.now()
        with Scheduler(3):
            assert late.now() == first
        assert first[:3] == (scheduler.outside.monotonic(),) * 3
    assert late.now()[0] == pytest.approx(time.monotonic(), abs=3600)
    del sys.modules["mama_spark.late"], vars(mama_spark)["late"]

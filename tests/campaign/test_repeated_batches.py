"""Rows are stored once, however often a batch is repeated: see :mod:`.repeated_batches`."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.brokers import BROKERS, CampaignBroker
from tests.campaign.oracle import Findings, flights, judge
from tests.campaign.repeated_batches import MIDDLE, POINTS, SERVER_KILLED, Plan, repeat_until_done, tail

#: Seconds: the duplicate window of all streams.
WINDOW = 1.0
#: Seconds between a kill and the next run, longer than the window.
PAUSE = 1.3 * WINDOW
CYCLES = int(os.environ.get("MAMA_REPEATED_CYCLES", "500"))
#: name -> options of the sink, and what is special about the rows
CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "rows": ({}, {"shuffled": True}),
    "equal rows": ({}, {"shuffled": True, "copies": 4, "partitions": (2, 4, 3)}),
    "lines": ({"pack": "lines", "packMaxRows": "7"}, {"shuffled": True, "copies": 3}),
    "arrow": ({"pack": "arrow", "packMaxRows": "7"}, {"shuffled": True, "partitions": (2, 4, 3), "copies": 2}),
    "ordered": ({"order": "partition"}, {}),
}


@dataclass
class Outcome:
    """Of one case: ``wrong`` is what contradicts the promises."""

    found: Findings
    wrong: dict[str, int]
    runs: int
    output: str = field(repr=False)


def cases(broker: CampaignBroker) -> list[str]:
    return [name for name in CASES if name != "ordered" or broker.ordered is not None]


def options(url: str, folder: Path, stream: str, exactly_once: bool, extra: dict[str, str]) -> dict[str, str]:
    given = {
        "url": url, "stream": stream, "flightLog": str(folder / "log"), "flightLogPayload": "all", "maxInFlight": "32",
        "refillAllowedAt": "8", "waitTimeout": "600ms", "retryDeadline": "6s", **extra,
    }  # fmt: skip
    return {**given, "exactlyOnce": "true"} if exactly_once else given


def kill_and_repeat(
    broker: CampaignBroker,
    folder: Path,
    name: str,
    points: tuple[str, ...],
    *,
    exactly_once: bool = True,
    seed: int = 0,
    signal: str = "",
    most: int = 12,
    batches: int = 4,
) -> Outcome:
    extra, special = CASES[name]
    if name == "ordered":
        extra = broker.ordered or {}
    stream = "".join(word.capitalize() for word in name.split())
    folder.mkdir()
    broker.create(stream, f"{stream}.>")
    given = options(broker.url, folder, stream, exactly_once, extra)
    plan = Plan(given, str(folder), stream, points=points, seed=seed, signal=signal, batches=batches, **special)
    runs = repeat_until_done(plan, pause=PAUSE, most=most)
    found = judge(plan.expected(), broker.messages(stream), flights(folder / "log"))
    wrong = found.faults(may_double=False, may_fail=False, ordered=name == "ordered")
    return Outcome(found, wrong, runs, tail(folder / "driver.out"))


@pytest.mark.thorough
def test_each_row_is_stored_once_though_drivers_and_workers_are_killed_at_every_moment(tmp_path: Path) -> None:
    """30 kills; the window of the stream is over before each repetition."""
    with BROKERS["NATS R1"](tmp_path / "nats", WINDOW) as server, ThreadPoolExecutor(len(CASES)) as pool:
        running = {}
        for i, name in enumerate(cases(server)):
            points, folder = (*POINTS[i:], *POINTS[:i]), tmp_path / name.replace(" ", "")
            running[name] = pool.submit(kill_and_repeat, server, folder, name, points)
        outcomes = {name: future.result() for name, future in running.items()}
    print(outcomes)
    for name, outcome in outcomes.items():
        assert not outcome.wrong, (name, outcome, outcome.output)
        assert outcome.runs > len(POINTS), (name, outcome)


@pytest.mark.thorough
@pytest.mark.parametrize("bridge", ["Malamute", pytest.param("Malamute over NATS", marks=pytest.mark.explore)])
def test_rows_of_a_malamute_stream_are_stored_once_though_drivers_and_workers_are_killed(
    tmp_path: Path, bridge: str
) -> None:
    """Other numbers of partitions, equal rows, another order, packs."""
    with BROKERS[bridge](tmp_path / "malamute", WINDOW) as server, ThreadPoolExecutor(2) as pool:
        plan = {"equal rows": POINTS[::2], "arrow": POINTS[1::2]}
        running = {
            name: pool.submit(kill_and_repeat, server, tmp_path / name.replace(" ", ""), name, points, batches=3)
            for name, points in plan.items()
        }
        outcomes = {name: future.result() for name, future in running.items()}
    for name, outcome in outcomes.items():
        assert not outcome.wrong, (name, outcome, outcome.output)
        assert outcome.runs == 4, (name, outcome)


def kill_on_signal(broker: CampaignBroker, file: Path, over: threading.Event) -> None:
    """Kill the server when a task asks for it, and start it again when it has forgotten the ids."""
    while not over.is_set():
        if file.exists():
            file.unlink()
            server = broker.server
            server.kill()
            time.sleep(PAUSE)
            server.start()
        time.sleep(0.02)


@pytest.mark.explore
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("bridge", list(BROKERS))
def test_no_long_sequence_of_kills_loses_or_doubles_a_row(tmp_path: Path, bridge: str) -> None:
    """``MAMA_REPEATED_CYCLES`` (500) kills at random moments, also of the server, one case after another."""
    drawn = int(os.environ.get("MAMA_CAMPAIGN_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"MAMA_CAMPAIGN_SEED={drawn} MAMA_REPEATED_CYCLES={CYCLES}")
    chance, done = random.Random(drawn), 0
    while done < CYCLES:
        folder, over = tmp_path / str(done), threading.Event()
        folder.mkdir()
        signal = folder / "kill the server"
        with BROKERS[bridge](folder / "broker", WINDOW) as server, ThreadPoolExecutor(len(CASES) + 1) as pool:
            pool.submit(kill_on_signal, server, signal, over)
            running = {}
            for name in cases(server):
                points = tuple(chance.choices((*POINTS, SERVER_KILLED), k=10))
                case = partial(kill_and_repeat, seed=chance.randrange(1 << 30), signal=str(signal), most=60, batches=12)
                running[name] = pool.submit(case, server, folder / name.replace(" ", ""), name, points)
            try:
                for name, future in running.items():
                    outcome = future.result()
                    done += outcome.runs - 1
                    print(done, name, outcome)
                    assert not outcome.wrong, (name, outcome, outcome.output)
            finally:
                over.set()


@pytest.mark.thorough
def test_without_the_option_the_same_kills_double_rows(tmp_path: Path) -> None:
    with BROKERS["NATS R1"](tmp_path / "nats", WINDOW) as server:
        found = kill_and_repeat(server, tmp_path / "without", "rows", (MIDDLE,) * 2, exactly_once=False).found
    assert found.doubled
    assert not found.lost

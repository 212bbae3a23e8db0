"""Rows are stored once, however often a batch is repeated: see :mod:`.repeated_batches`."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer

from tests.campaign.oracle import read_nats
from tests.campaign.repeated_batches import POINTS, SERVER_KILLED, Outcome, Plan, judge, repeat_until_done, tail
from tests.support.nats.nats_servers import Admin

#: Seconds: the duplicate window of the streams, and the pause between a kill and the next run.
WINDOW, PAUSE = 1.0, 1.3
CYCLES = int(os.environ.get("MAMA_REPEATED_CYCLES", "500"))
#: name -> options of the sink, and what is special about the rows
CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "rows": ({}, {"shuffled": True}),
    "equal rows": ({}, {"shuffled": True, "copies": 4, "partitions": (2, 4, 3)}),
    "lines": ({"pack": "lines", "packMaxRows": "7"}, {"shuffled": True, "copies": 3}),
    "arrow": ({"pack": "arrow", "packMaxRows": "7"}, {"shuffled": True, "partitions": (2, 4, 3), "copies": 2}),
    "ordered": ({"order": "partition", "ackMode": "batch"}, {}),
}


def options(url: str, folder: Path, stream: str, exactly_once: bool, extra: dict[str, str]) -> dict[str, str]:
    given = {
        "url": url, "stream": stream, "flightLog": str(folder / "log"), "flightLogPayload": "all", "maxInFlight": "32",
        "refillAllowedAt": "8", "waitTimeout": "600ms", "retryDeadline": "6s", **extra,
    }  # fmt: skip
    return {**given, "exactlyOnce": "true"} if exactly_once else given


def kill_and_repeat(
    server: NatsServer,
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
    stream = "".join(word.capitalize() for word in name.split())
    folder.mkdir()
    with Admin(server.url) as admin:
        admin.create_stream(stream, [f"{stream}.>"], duplicate_window=int(WINDOW * 1e9), allow_batched=True)
    given = options(server.url, folder, stream, exactly_once, extra)
    plan = Plan(given, str(folder), stream, points=points, seed=seed, signal=signal, batches=batches, **special)
    runs = repeat_until_done(plan, pause=PAUSE, most=most)
    outcome = judge(plan, read_nats([server.url], stream), folder / "log", ordered=name == "ordered")
    outcome.runs, outcome.output = runs, tail(folder / "driver.out")
    return outcome


def test_each_row_is_stored_once_though_drivers_and_workers_are_killed_at_every_moment(tmp_path: Path) -> None:
    """30 kills; the window of the stream is over before each repetition."""
    with NatsServer(tmp_path / "nats") as server, ThreadPoolExecutor(len(CASES)) as pool:
        running = {}
        for i, name in enumerate(CASES):
            points, folder = (*POINTS[i:], *POINTS[:i]), tmp_path / name.replace(" ", "")
            running[name] = pool.submit(kill_and_repeat, server, folder, name, points)
        outcomes = {name: future.result() for name, future in running.items()}
    print(outcomes)
    for name, outcome in outcomes.items():
        assert not outcome.wrong, (name, outcome, outcome.output)
        assert outcome.runs > len(POINTS), (name, outcome)


def kill_on_signal(server: NatsServer, file: Path, over: threading.Event) -> None:
    """Kill the server when a task asks for it, and start it again when it has forgotten the ids."""
    while not over.is_set():
        if file.exists():
            file.unlink()
            server.kill()
            time.sleep(PAUSE)
            server.start()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_no_long_sequence_of_kills_loses_or_doubles_a_row(tmp_path: Path) -> None:
    """``MAMA_REPEATED_CYCLES`` (500) kills at random moments, also of the server, one case after another."""
    drawn = int(os.environ.get("MAMA_CAMPAIGN_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"MAMA_CAMPAIGN_SEED={drawn} MAMA_REPEATED_CYCLES={CYCLES}")
    chance, done = random.Random(drawn), 0
    while done < CYCLES:
        folder, over = tmp_path / str(done), threading.Event()
        folder.mkdir()
        signal = folder / "kill the server"
        with NatsServer(folder / "nats") as server, ThreadPoolExecutor(len(CASES) + 1) as pool:
            pool.submit(kill_on_signal, server, signal, over)
            running = {}
            for name in CASES:
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


def test_without_the_option_the_same_kills_double_rows(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        outcome = kill_and_repeat(server, tmp_path / "without", "rows", ("in mid-partition",) * 2, exactly_once=False)
    assert outcome.doubled
    assert not outcome.lost

"""One round of the campaign: a write under a fault, and what the oracle says of it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign import configurations, driver, faults, oracle
from tests.campaign.brokers import BROKERS
from tests.campaign.configurations import PARTITIONS, STREAM, Configuration
from tests.campaign.faults import Fault, Scene
from tests.campaign.job import Job
from tests.campaign.oracle import Findings
from tests.campaign.rows import Amount, expected

SECONDS_OF_A_BATCH = 1.5
MOST_STRIKES = 3
#: Of a round as a whole, seconds: for the wait until a task is connected.
TIMEOUT = 600.0


@dataclass
class Round:
    """What happened.

    :ivar strikes: how often the fault struck a running write
    :ivar wrong: what contradicts the promises; empty = nothing
    """

    seed: int
    configuration: Configuration
    fault: Fault
    findings: Findings = field(default_factory=Findings)
    strikes: int = 0
    runs: int = 0
    seconds: float = 0.0
    wrong: str = ""

    def __str__(self) -> str:
        f = self.findings
        end = f"WRONG: {self.wrong}" if self.wrong else "fine"
        return (
            f"seed {self.seed}: {self.fault.name} x{self.strikes}; "
            f"{self.configuration}; {f.rows} rows, lost {f.lost}, doubled {f.doubled}, unaccounted {f.unaccounted}, "
            f"failed {f.failed}; drivers {self.runs}, {self.seconds:.1f} s; {end}"
        )


def play(
    seed: int,
    folder: Path,
    *,
    only: str = "",
    bridge: str = "",
    ordered: bool = False,
    once: bool = False,
    small: bool = False,
) -> Round:
    """A round that depends on its seed (and on chance, as to when what happens).

    :param folder: for everything that it makes
    :param only: part of the name of the fault; ``bridge``: of the broker; ``ordered``, ``once``: only with
        ``order=partition``, ``exactlyOnce``
    :param small: fewer rows, for a short trial
    """
    chance = random.Random(seed)
    configuration, fault = _drawn(chance, only, bridge, ordered, once)
    rows = (600 if small else 3_000) * (1 if configuration.pack == "off" else 2)
    amount = Amount(1 if small else 2, PARTITIONS, rows)
    done = Round(seed, configuration, fault)
    began = time.monotonic()
    folder.mkdir(parents=True)
    try:
        _play(done, chance, folder, amount)
    except Exception as e:  # noqa: BLE001 - a round that cannot be judged is wrong, and the next one is played
        done.wrong = f"{type(e).__name__}: {e}"
    done.seconds = time.monotonic() - began
    return done


def _drawn(chance: random.Random, only: str, bridge: str, ordered: bool, once: bool) -> tuple[Configuration, Fault]:
    for _ in range(10_000):
        configuration = configurations.draw(chance)
        fault = faults.draw(chance, configuration.bridge)
        wanted = configuration.ordered >= ordered and configuration.once >= once
        if wanted and only in fault.name and bridge in configuration.bridge:
            return configuration, fault
    raise ValueError("no configuration with a fault is as asked for")


def _play(done: Round, chance: random.Random, folder: Path, amount: Amount) -> None:
    configuration, log = done.configuration, folder / "log"
    with BROKERS[configuration.bridge](folder / "broker", configuration.id_window) as place:
        place.create(STREAM, "campaign.>")
        options = {"url": place.url, **configuration.options(str(log))}
        options |= configuration.rate(amount.rows, SECONDS_OF_A_BATCH)
        output = folder / "driver.out"
        job = Job(output, driver.drive, options, folder, amount, output)
        try:
            job.start()
            scene = Scene(place, job, chance)
            for _ in range(chance.randint(1, MOST_STRIKES)):
                if not _met(scene):
                    break
                done.fault.strike(scene)
                done.strikes += 1
            job.finish()
        finally:
            done.runs = job.runs
            job.end()
        done.findings = oracle.judge(expected(amount), place.messages(STREAM), oracle.flights(log))
    _hold(done)


def _met(scene: Scene) -> bool:
    """Wait for a moment in the middle of the write; False when it is over."""

    until = time.monotonic() + TIMEOUT
    while not scene.job.done and not scene.job.workers(scene.broker.ports):
        if not scene.job.running and not scene.job.done:
            scene.job.start()
        assert time.monotonic() < until, f"no task was connected for {TIMEOUT:g} s: {scene.job.last_output()}"
        time.sleep(0.1)  # to look costs more than a test may wait for
    scene.last(0, SECONDS_OF_A_BATCH)
    return not scene.job.done


def _hold(done: Round) -> None:
    c = done.configuration
    surely_once = c.ids or (c.tolerant and not done.fault.restarts and done.runs == 1)
    wrong = done.findings.faults(may_double=not surely_once, may_fail=c.tolerant, ordered=c.ordered)
    done.wrong = ", ".join(f"{name} {count}" for name, count in wrong.items())

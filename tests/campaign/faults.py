"""What goes wrong in a round. Each fault is over when its function returns."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.campaign.brokers import CampaignBroker, ReplicatedNats
from tests.campaign.configurations import BRIDGES
from tests.campaign.job import Job
from tests.support.processes import full_disk


@dataclass(frozen=True)
class Scene:
    """Where a fault strikes."""

    broker: CampaignBroker
    job: Job
    chance: random.Random

    def last(self, least: float, most: float) -> None:
        """So many seconds pass."""
        time.sleep(self.chance.uniform(least, most))


def nothing(scene: Scene) -> None:
    scene.last(0, 0.1)


def server_killed(scene: Scene) -> None:
    scene.broker.server.kill()
    scene.last(0, 2.5)
    scene.broker.server.start()


def server_paused(scene: Scene) -> None:
    scene.broker.server.pause()
    scene.last(0.5, 5)
    scene.broker.server.resume()


def node_stands_still(scene: Scene) -> None:
    """Any one, for longer than clients stay with it, and than its election timer: it campaigns when it goes on. Perhaps
    for so long that its rows have timed out."""
    assert isinstance(scene.broker, ReplicatedNats)
    node = scene.chance.choice(scene.broker.cluster.nodes)
    node.pause()
    scene.last(*scene.chance.choice(((7, 12), (7, 12), (25, 25))))
    node.resume()


def leader_steps_down(scene: Scene) -> None:
    assert isinstance(scene.broker, ReplicatedNats)
    scene.broker.step_down()


def server_disk_full(scene: Scene) -> None:
    scene.broker.fill_disk(scene.chance.choice((0, 1_000, 20_000)))
    scene.last(0.5, 5)
    scene.broker.free_disk()


def log_disk_full(scene: Scene) -> None:
    if not scene.job.running:
        return
    with full_disk(scene.job.pid, scene.chance.choice((0, 4_000, 20_000)), java=True, others=True):
        scene.last(0.5, 5)


def network_cut(scene: Scene) -> None:
    for _ in range(scene.chance.randint(1, 4)):
        for proxy in scene.broker.proxies:
            proxy.cut()
        scene.last(0, 0.7)


def connections_reset(scene: Scene) -> None:
    for _ in range(scene.chance.randint(1, 4)):
        for proxy in scene.broker.proxies:
            proxy.reset()
        scene.last(0, 0.7)


def network_silent(scene: Scene) -> None:
    for proxy in scene.broker.proxies:
        proxy.silence()
    scene.last(0.5, 5)
    for proxy in scene.broker.proxies:
        proxy.speak()


def task_killed(scene: Scene) -> None:
    _signal_a_worker(scene, signal.SIGKILL)


def task_paused(scene: Scene) -> None:
    pid = _signal_a_worker(scene, signal.SIGSTOP)
    scene.last(0.5, 5)
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGCONT)


def _signal_a_worker(scene: Scene, number: signal.Signals) -> int:
    workers = scene.job.workers(scene.broker.ports)
    if not workers:
        return 0
    pid = scene.chance.choice(workers)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return pid


def driver_killed(scene: Scene) -> None:
    scene.job.kill(whole=True)


def driver_killed_alone(scene: Scene) -> None:
    """Its tasks go on, beside those of the next driver."""
    scene.job.kill(whole=False)


@dataclass(frozen=True)
class Fault:
    """
    :ivar bridges: brokers that it can strike
    :ivar restarts: tasks begin again, and so publish again what they have published
    """

    name: str
    strike: Callable[[Scene], None]
    bridges: tuple[str, ...] = BRIDGES
    restarts: bool = False


FAULTS = (
    Fault("none", nothing),
    Fault("server killed (-9), started again", server_killed),
    Fault("server paused (SIGSTOP)", server_paused),
    Fault("a node stands still (SIGSTOP)", node_stands_still, ("NATS R3",)),
    Fault("leader steps down", leader_steps_down, ("NATS R3",)),
    Fault("disk of the server full", server_disk_full),
    Fault("disk of the flight log full", log_disk_full, restarts=True),
    Fault("network cut", network_cut),
    Fault("connections reset (RST)", connections_reset),
    Fault("network silent", network_silent),
    Fault("task killed (-9)", task_killed, restarts=True),
    Fault("task paused (SIGSTOP)", task_paused),
    Fault("driver and tasks killed (-9)", driver_killed, restarts=True),
    Fault("driver killed (-9), tasks go on", driver_killed_alone, restarts=True),
)


def draw(chance: random.Random, bridge: str) -> Fault:
    """One that can strike this broker; that nothing happens is rare."""
    able = [fault for fault in FAULTS if bridge in fault.bridges]
    return chance.choices(able, [0.2 if fault.strike is nothing else 1 for fault in able])[0]

"""How fast events of Tango are received: the parts ``receive`` and ``record`` of :mod:`bench.tango`.

A producer that only replays (:mod:`bench.tango.replay`) sends to a subscriber in this process, or to ``mama record`` in
a process of its own, which writes to a log. Every event is looked for at its end: counters without a gap, values as
they were sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEventKind, decode_events
from mama_spark.tango.events.batch_decoder import BatchDecoder, EventColumns
from mama_spark.tango.log.records import RecordKind, decode
from mama_spark.testing.waiting import until

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker

from ..machine import process_cpu
from .replay import HWM, VALUES, names

ROOT = Path(__file__).resolve().parents[2]
ATTRIBUTES = 40
LOGS = ("nats", "durable")
_PATIENCE = 60.0
_STREAM = "TANGO"
_SETTINGS = f"""[recorder]
devices = ["{{device}}"]
events = ["change"]
attributes = ["attribute*"]
url = "tango://127.0.0.1:{{port}}#dbase=no"
hwm = {HWM}
buffer = {HWM}
stateEvery = "1h"
[log]
url = "{{log}}"
createStream = {{create}}
"""


def device(name: str) -> str:
    """Each reader has one of its own, so that nobody gets what another one is measured with."""
    return f"bench/replay/{name}"


class Watch:
    """What a run of so many events took: ``with Watch(count, reader=pid) as watch: ...``, then ``watch.told``."""

    def __init__(self, count: int, **processes: int) -> None:
        self._count, self._processes = count, processes
        self.told: dict[str, Any] = {}

    def _cpu(self) -> dict[str, float]:
        return {f"{name}_us": process_cpu(pid) for name, pid in self._processes.items()}

    def __enter__(self) -> Self:
        self._before, self._began = self._cpu(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        """Events a second, and processor time an event in µs of each process, all its threads."""
        seconds, after = time.perf_counter() - self._began, self._cpu()
        spent = {name: (after[name] - before) / self._count * 1e6 for name, before in self._before.items()}
        self.told = {"events": self._count, "rate": self._count / seconds, **spent}


class Producer:
    """:mod:`bench.tango.replay` in a process of its own. ``with Producer() as producer``."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "bench.tango.replay", str(ATTRIBUTES), *map(device, ("memory", *LOGS))]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._line())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the producer ended")
        return line

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, name: str, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{device(name)} {count}\n")
        self._process.stdin.flush()

    def end(self) -> float:
        """Seconds that it took."""
        return float(self._line())


def check(found: list[EventColumns], rounds: int) -> None:
    """Whether the values are those of so many replays, which are equal.

    :raises RuntimeError: they are not
    """
    values: dict[bytes, list[float]] = {}
    for columns in found:
        for group in columns.scalars:
            for name, value in zip(group.names.tolist(), group.read.tolist(), strict=True):
                values.setdefault(name, []).append(value)
    each = {len(v) for v in values.values()}
    if sorted(name.decode() for name in values) != names(ATTRIBUTES) or len(each) != 1:
        raise RuntimeError(f"events of {len(values)} attributes came, {each} of each")
    of_round = each.pop() // rounds
    wanted = np.tile(np.arange(of_round) % VALUES, rounds)
    for name, came in values.items():
        if not np.array_equal(came, wanted):
            raise RuntimeError(f"values of {name.decode()} are not those that were sent")


class Memory:
    """``receive``: decoded and numbered in memory."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._subscriber = TangoSubscriber(hwm=HWM, limit=2 * HWM)

    def __enter__(self) -> Self:
        self._subscriber.start()
        address = f"tango://127.0.0.1:{self._producer.port}/{device('memory')}#dbase=no"
        self._subscriber.subscribe_many([(address, name, "change") for name in names(ATTRIBUTES)])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._subscriber.close()

    def run(self, count: int) -> dict[str, Any]:
        """One replay, taken in as columns."""
        self._subscriber.take(HWM)  # the first values
        found, came, deadline, decoder = [], 0, time.monotonic() + _PATIENCE, BatchDecoder()
        with Watch(count, producer=self._producer.pid, reader=os.getpid()) as watch:
            self._producer.begin("memory", count)
            while came < count:
                batch = decode_events(self._subscriber.take(HWM, 1.0), decoder)
                if any(event.kind is not SubscriptionEventKind.EVENT for event in batch.events):
                    raise RuntimeError(f"not only events came: {self._subscriber.counts}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{came} of {count} events came: {self._subscriber.counts}")
                found.append(batch.columns)
                came += len(batch)
        self._producer.end()
        check(found, 1)
        return watch.told


class Recorder:
    """``record-<log>``: through ``mama record`` to a durable log.

    :param kind: of the log
    """

    def __init__(self, kind: str, producer: Producer, folder: Path) -> None:
        self._kind, self._producer, self._folder = kind, producer, folder
        self._stack = ExitStack()
        self._log: RecordLog | None = None
        self._replays: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            url, self._server = stack.enter_context(_log(self._kind, self._folder))
            conf = self._folder / f"record-{self._kind}.toml"
            conf.write_text(
                _SETTINGS.format(
                    device=device(self._kind), port=self._producer.port, log=f"{url}/{_STREAM}",
                    create="true" if self._kind == "nats" else "false",
                )
            )  # fmt: skip
            self._process = stack.enter_context(_recording(conf))
            bridge = log_bridge(SubscribeOptions.parse({"url": url, "stream": _STREAM}), _PATIENCE)
            bridge.open()
            stack.callback(bridge.close)
            self._bridge = bridge
            until(lambda: self._process.poll() is not None or self._has_begun())
            if self._process.poll() is not None:
                raise RuntimeError("mama record ended")
            self._begin = self._last()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _last(self) -> int:
        if self._log is None:
            try:
                self._log = self._bridge.log(_STREAM)
            except MamaError:  # not made yet
                return 0
        return self._log.bounds().last

    def _has_begun(self) -> bool:
        """Whether the log has the first value of each attribute, and that the server is there."""
        if not (last := self._last()):
            return False
        assert self._log is not None
        kinds = [kind for records in self._log.read(0, last) for kind in decode(records.payloads).kind.tolist()]
        return RecordKind.ONLINE in kinds and kinds.count(RecordKind.INITIAL) >= ATTRIBUTES

    def run(self, count: int) -> dict[str, Any]:
        """One replay, until the log has all of it."""
        wanted = self._last() + count
        processes = {"producer": self._producer.pid, "reader": self._process.pid, "log": self._server}
        with Watch(count, **processes) as watch:
            self._producer.begin(self._kind, count)
            until(lambda: self._last() >= wanted)
        self._producer.end()
        self._replays.append(count)
        return watch.told

    def check(self) -> None:
        """Everything that was sent stands in the log, in order, once.

        :raises RuntimeError: it does not
        """
        decoder, found, ctrs = BatchDecoder(), [], []
        assert self._log is not None
        for records in self._log.read(self._begin, self._last()):
            recorded = decode(records.payloads)
            if recorded.bad or not (recorded.kind == RecordKind.EVENT).all():
                raise RuntimeError(f"not only events were recorded: {sorted(set(recorded.kind.tolist()))}")
            found.append(decoder.decode(*recorded.frames.columns()))
            ctrs.append(recorded.ctr.astype(np.int64))
        numbers = np.sort(np.concatenate(ctrs))
        if len(numbers) != sum(self._replays):
            raise RuntimeError(f"{len(numbers)} of {sum(self._replays)} events were recorded")
        first, last = numbers[[0, -1]].tolist()
        if not np.array_equal(numbers, np.repeat(np.arange(first, last + 1), ATTRIBUTES)):
            raise RuntimeError("a counter is missing")
        check(found, len(self._replays))


@contextmanager
def _log(kind: str, folder: Path) -> Iterator[tuple[str, int]]:
    """URL of a server that keeps logs, and its process id."""
    if kind == "nats":
        with NatsServer(folder / "nats", jetstream="max_file: 60GB") as nats:
            yield nats.url, nats.pid
    else:
        with RestartableMalamuteBroker(folder / "broker") as room:
            yield room.url, room.pid


@contextmanager
def _recording(conf: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mama_spark.cli", "record", "--conf-file", str(conf)], stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_PATIENCE)

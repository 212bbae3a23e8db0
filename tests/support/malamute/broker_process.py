"""A Malamute broker for tests: in this process, or as a process of its own, which can be killed and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

from mama_spark.contracts.errors import Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.bridge.logs import append
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.broker.event_records import broker_event
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.testing.waiting import eventually

from tests.support.ports import lasting_port

_PATIENCE = 60.0
_CONF = """
[broker]
linger = "500ms"
[clients]
timeout = "60s"
[[stream]]
pattern = "{pattern}"
{engine}
{settings}
"""


class _StoringBroker:
    """On a port that it keeps.

    :param folder: for its configuration and its streams
    :param pattern: streams that are stored; others are ``simple``
    :param settings: lines of TOML for the stored streams
    :param engine: lines of TOML that say where they are stored; None = in files, by the engine ``durable``
    """

    def __init__(
        self, folder: Path, pattern: str = "^orders$", settings: str = "", *, engine: str | None = None
    ) -> None:
        self.folder, self.streams = folder, folder / "streams"
        self._pattern, self._settings = pattern, settings
        self._engine = f'engine = "durable"\nfolder = "{self.streams}"' if engine is None else engine
        self._bind = f"tcp://127.0.0.1:{lasting_port()}"
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """At the same port as before; whoever had it meanwhile is waited for."""
        conf = self.configure()
        eventually(lambda: self._started(conf), f"the broker starts at {self._bind}")

    def _started(self, conf: Path) -> bool:
        raise NotImplementedError

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def configure(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = self.folder / "broker.toml"
        conf.write_text(_CONF.format(pattern=self._pattern, engine=self._engine, settings=self._settings))
        return conf

    def store(self, stream: str, batch: MessageBatch) -> int:
        """Publish by a client of its own; the last sequence."""
        return append(MalamuteSettings(ConnectionSettings((self.url,))), stream, batch, _PATIENCE) or 0


class BrokerHere(_StoringBroker):
    """What :class:`BrokerProcess` is, in threads of this process: for tests that do not kill it.

    :ivar broker: that runs
    """

    broker: Broker

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self, conf: Path) -> bool:
        self.broker = Broker(load(conf, self._bind), encode=lambda event: broker_event(*event))
        try:
            self.broker.start()
        except Unavailable:  # the port of the one before is not free yet
            return False
        self.url = self.broker.endpoint.replace("tcp://", "mlp://")
        return True

    def stop(self) -> None:
        """Idempotent."""
        self.broker.stop()


class BrokerProcess(_StoringBroker):
    """``mama broker`` with stored streams, in a process of its own."""

    _process: subprocess.Popen[str] | None = None

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _started(self, conf: Path) -> bool:
        command = [sys.executable, "-m", "mama_spark.cli", "broker", "--conf-file", str(conf), "--bind", self._bind]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("ready: "):
            self.stop()  # why is on standard error
            return False
        self.url = said.split()[1]
        return True

    def kill(self) -> None:
        """As ``kill -9`` does. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> None:
        """As Ctrl-C does: what was accepted is stored."""
        assert self._process is not None
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.wait(_PATIENCE)
        process.stdout.close()

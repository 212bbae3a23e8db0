"""A helper process of the Tango tests, seen from the test: started, asked by JSON lines, stopped, ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mama_spark.testing.waiting import TIMEOUT

from tests.support.tango_processes.tango9 import PATHS, program

_STOP_TIMEOUT = 15.0
Event = dict[str, Any]


class Failed(Exception):
    """A DevFailed in the other process. ``reasons`` = those of its stack, the first cause first."""

    def __init__(self, errors: list[dict[str, str]]) -> None:
        super().__init__("; ".join(f"{e['reason']}: {e['desc']}" for e in errors))
        self.errors = errors

    @property
    def reasons(self) -> list[str]:
        return [error["reason"] for error in self.errors]


class TangoProcess:
    """A helper process that answers JSON lines (:mod:`tests.support.tango_processes.child`).

    It ends with this one, whatever happens. What it prints is in :attr:`log`, since the last start.

    :param release: of PyTango: 10 (10.3.1, in the environment of the tests) or 9 (9.3.6, in one of its own)
    """

    module = ""

    def __init__(self, folder: Path | str, environment: dict[str, str] | None = None, *, release: int = 10) -> None:
        self.folder, self.release = Path(folder), release
        self._environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: dict[int, list[Event]] = {}
        self._changed = threading.Condition()
        self._ended = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {f'pid {self.pid}' if self.running else 'stopped'}>"

    @property
    def log(self) -> Path:
        return self.folder / f"{type(self).__name__}.log"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        """The end of the log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-3000:]
        return ""

    def arguments(self) -> Sequence[str]:
        return ()

    def _python(self) -> str:
        return sys.executable if self.release == 10 else program("bin/python")

    def spawn(self) -> None:
        """Start without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TANGO_", "ORB"))}
        environment |= {**PATHS, "INTERPRETER": self._python()}
        environment |= {"PYTHONUNBUFFERED": "1", **self._environment}  # prints tell when it is ready
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [self._python(), "-m", self.module, *self.arguments()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, encoding="utf-8", cwd=self.folder, env=environment, start_new_session=True,
            )  # fmt: skip
        self._ended = False
        threading.Thread(target=self._listen, args=(self._process,), name=repr(self), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                message = json.loads(line)
                with self._changed:
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self._events.setdefault(message["subscription"], []).append(message)
                    self._changed.notify_all()
        with self._changed:
            if process is self._process:
                self._ended = True
            self._changed.notify_all()

    def call(self, do: str, /, **arguments: Any) -> Any:
        """One request and its answer.

        :raises Failed: with a DevFailed
        :raises AssertionError: it is broken, or the process ended, or did not answer in time
        """
        number = next(self._numbers)
        process = self._process
        assert process is not None, f"{self!r} was not started"
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"id": number, "do": do, **arguments}) + "\n")
            process.stdin.flush()
        except OSError:
            raise AssertionError(f"{self!r} ended:\n{self.tail()}") from None
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self._ended, TIMEOUT)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise AssertionError(f"{self!r} did not answer {do} {arguments}:\n{self.tail()}")
        if "errors" in answer:
            raise Failed(answer["errors"])
        assert "broken" not in answer, f"{do} {arguments}: {answer['broken']}"
        return answer["result"]

    def start(self) -> Self:
        self.spawn()
        return self

    def stop(self) -> None:
        """End it; harmless when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP. Returns when it stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + _STOP_TIMEOUT
        while os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is None:
            assert self.running, f"{self!r} ended"
            assert time.monotonic() < until, f"{self!r} does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a paused process takes no SIGTERM
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()  # real servers take a third of a second to end, and nobody looks at how they do

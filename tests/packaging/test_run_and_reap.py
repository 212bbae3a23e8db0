"""Commands of the Makefile leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import is_alive

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run_and_reap.py"

# starts an orphan in a session of its own, as brokers and JVMs are, says its pid, and waits
PARENT = """
import subprocess, sys, time
middle = "import subprocess; print(subprocess.Popen(['sleep', '300'], start_new_session=True).pid, flush=True)"
subprocess.run([sys.executable, "-c", middle])
time.sleep({seconds})
sys.exit({code})
"""


def start(seconds: int, code: int = 0) -> tuple[subprocess.Popen[str], int]:
    program = PARENT.format(seconds=seconds, code=code)
    command = [sys.executable, str(SCRIPT), sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    return process, orphan


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_its_orphans(number: signal.Signals) -> None:
    process, orphan = start(seconds=300)
    assert is_alive(orphan)
    os.kill(process.pid, number)
    assert process.wait(60) == 128 + number
    process.stdout.close()  # type: ignore[union-attr]
    assert not is_alive(orphan)


def test_the_exit_code_is_the_commands_and_orphans_are_ended() -> None:
    process, orphan = start(seconds=0, code=7)
    assert process.wait(60) == 7
    process.stdout.close()  # type: ignore[union-attr]
    deadline = time.monotonic() + 60
    while is_alive(orphan) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(orphan)


def test_orphans_that_end_are_collected_while_the_command_runs() -> None:
    """Nothing of their group is left then, which some wait for; and their processor time is told to who asks."""
    orphan = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    middle = f"import subprocess; print(subprocess.Popen({orphan!r}, start_new_session=True).pid, flush=True)"
    program = f"""
import os, subprocess, sys, time
group = int(subprocess.run([sys.executable, "-c", {middle!r}], stdout=subprocess.PIPE).stdout)
for _ in range(1_200):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        sys.exit(5)
    time.sleep(0.05)
"""
    command = [sys.executable, str(SCRIPT), sys.executable, "-c", program]
    env = {**os.environ, "PROCESSOR_TIME": "told"}
    ended = subprocess.run(command, check=False, timeout=120, stderr=subprocess.PIPE, text=True, env=env)
    assert ended.returncode == 5
    assert float(ended.stderr.split(" s of processor time: ")[0]) > 0.5


def test_a_command_has_the_last_word_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROCESSOR_TIME", raising=False)
    ended = subprocess.run([sys.executable, str(SCRIPT), "true"], check=True, stderr=subprocess.PIPE, timeout=120)
    assert ended.stderr == b""

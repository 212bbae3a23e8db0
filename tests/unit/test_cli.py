"""The command ``mama``, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark import __version__


def mama(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mama_spark.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment or None)


def test_help_and_version_import_no_library() -> None:
    program = (
        "import sys; from mama_spark import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyarrow', 'numpy', 'deltalake', 'nats', 'pyspark'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("serve", "check", "flights", "docs"))
    assert mama("--version").stdout.strip() == f"mama-spark {__version__}"


@pytest.mark.parametrize(
    "words",
    [
        ("flights", "no/such/log"),
        ("flights", "one", "two"),
        ("flights", "sweep", "no/such/log"),
        ("check", "--conf-file", "no-such-file.toml"),
        ("docs", "options", "--check", "no-such-file.md"),
    ],
)
def test_an_error_of_ours_is_one_line_and_exit_code_2(words: tuple[str, ...]) -> None:
    done = mama(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("mama: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("unknown",), ("flights",), ("flights", "sweep", "x", "--older-than", "soon")])
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...]) -> None:
    done = mama(*words)
    assert done.returncode == 2
    assert "usage: mama" in done.stderr


def test_check_says_that_nobody_answers(tmp_path: Path) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text('[mamapub]\nurl = "nats://127.0.0.1:1"\n')
    done = mama("check", "--conf-file", str(conf))
    assert done.returncode == 2
    assert "BAD" in done.stdout
    assert "Traceback" not in done.stderr


def test_docs_options_writes_and_recognises_a_stale_file(tmp_path: Path) -> None:
    page = tmp_path / "options.md"
    assert mama("docs", "options", "--write", str(page)).returncode == 0
    assert mama("docs", "options", "--check", str(page)).returncode == 0
    assert mama("docs", "options").stdout == page.read_text()
    page.write_text(page.read_text() + "\n")
    assert mama("docs", "options", "--check", str(page)).returncode == 2


def test_a_broker_without_its_libraries_says_what_to_install() -> None:
    program = "import sys; sys.modules['zmq'] = None; from mama_spark import cli; sys.exit(cli.main(['broker']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "pip install 'mama-spark[malamute]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_serve_ends_with_ctrl_c_and_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "mama_spark.cli", "serve", "--store", str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "nats://127.0.0.1:" in line
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        servers = [int(pid) for file in children for pid in file.read_text().split()]
        assert servers
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    for pid in servers:
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or "nats-server" not in stat.read_text()

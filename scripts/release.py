"""Builds and tries a release: ``make release``.

The last commit becomes sdist and wheel in ``dist/``. Each is installed into an empty environment of each Python that is
found here (``PYTHONS="..."`` names them), alone and with the extras of a user, and runs the quick start of the README.
``dist/sbom/`` has what was installed with the wheel, as CycloneDX lists it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import rmtree

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TOOLS = ("build==1.6.1", "twine==7.0.0", "cyclonedx-bom==7.5.0", "pip==26.3")
EXTRAS = "[local,cli,malamute,openmama,otel,prometheus,report,tango,top]"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14", *Path.home().glob(".pyenv/versions/*/bin/python3"))
#: Of somebody who has no clone.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "PYTHON", "SPARK_HOME", "VIRTUAL"))}
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f}s] {text}", flush=True)


def run(*command: object, cwd: Path = DIST, env: dict[str, str] = ENVIRONMENT) -> str:
    """What it printed."""
    words = [*map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nrelease: this failed: {' '.join(words)}")
    return done.stdout


def pythons() -> dict[str, str]:
    """An interpreter of each minor version that the package is for."""
    ask = "import sys; sys.version_info >= (3, 11) and print('%d.%d' % sys.version_info[:2], sys.executable)"
    found: dict[str, str] = {}
    for python in os.environ.get("PYTHONS", "").split() or map(str, PYTHONS):
        try:
            answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue  # pyenv has names of versions that are switched off
        if answer:
            found.setdefault(*answer.strip().split(" ", 1))
    return dict(sorted(found.items()))


def quick_start(programs: Path, code: str, folder: Path) -> str:
    """With a broker at a free port, and its tables in the folder; the lines of the report."""
    serve = [str(programs / "mama"), "serve", "--port", "0"]
    with subprocess.Popen(serve, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as broker:
        try:
            (url,) = re.findall(r"ready: (\S+)", broker.stdout.readline() if broker.stdout else "")
            (folder / "quick.py").write_text(
                code.replace("nats://127.0.0.1:4222", url).replace("/tmp/mama", str(folder))
            )
            # as in an activated environment: Spark starts the first `python3` of the path
            activated = {**ENVIRONMENT, "PATH": f"{programs}:{ENVIRONMENT['PATH']}"}
            run("python", "quick.py", cwd=folder, env=activated)
        finally:
            broker.terminate()
    return run(programs / "mama", "flights", folder / "flight_log", cwd=folder)


def try_out(tools: Path, python: str, file: Path, code: str, sbom: bool) -> str:
    """How many rows of the quick start were acknowledged, and how long all of it took."""
    with tempfile.TemporaryDirectory(prefix="mama-release-") as name:
        folder, began = Path(name), time.monotonic()
        programs = folder / "env" / "bin"
        run(python, "-m", "venv", "--without-pip", programs.parent)
        for extras in ("", EXTRAS):
            say(f"installing {file.name}{extras} with {python}")
            run(tools, "-m", "pip", "--python", programs / "python", "install", "-q", f"{file}{extras}")
            version = run(programs / "mama", "--version", cwd=folder).split()[-1]
            assert f"-{version}" in file.name, version
            if sbom:
                listed = DIST / "sbom" / f"mama_spark-{version}{'-with-extras' * bool(extras)}.cdx.json"
                run(
                    tools,
                    "-m",
                    "cyclonedx_py",
                    "environment",
                    "--output-reproducible",
                    "-o",
                    listed,
                    programs / "python",
                )
        (acked,) = re.findall(r"1,000 acked, 0 failed", quick_start(programs, code, folder))
        return f"{acked} | {time.monotonic() - began:.0f} s |"


def main() -> None:
    rmtree(DIST, ignore_errors=True)
    (DIST / "sbom").mkdir(parents=True)
    table = ["| Python | file | quick start | took |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="mama-release-") as name:
        source, tools = Path(name) / "source", Path(name) / "tools" / "bin" / "python"
        say(f"installing {', '.join(TOOLS)}")
        run(sys.executable, "-m", "venv", tools.parents[1])
        run(tools, "-m", "pip", "install", "-q", *TOOLS)
        say("building the last commit: " + run("git", "log", "-1", "--format=%h %s", cwd=ROOT).strip())
        run("git", "clone", "-q", ROOT, source)
        run(tools, "-m", "build", "--outdir", DIST, source)  # the wheel from the sdist
        files = sorted(DIST.glob("mama_spark-*"))
        run(tools, "-m", "twine", "check", "--strict", *files)
        (code,) = re.findall(r"(?s)<!-- run: batch -->\n```python\n(.*?)```", (source / "README.md").read_text())
        for version, python in pythons().items():
            for file in files:
                tried = try_out(tools, python, file, code, sbom=len(table) == 2)
                table.append(f"| {version} | {file.name} | {tried}")
    print("", *table, *DIST.rglob("mama_spark*"), sep="\n")


if __name__ == "__main__":
    main()

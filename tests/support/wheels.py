"""The wheel of what is tracked, and an environment without the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path(next(p for p in sys.path if p.endswith("site-packages")))


def build_wheel(folder: Path) -> Path:
    """As a release is built: files that lie about here by chance are not in it.

    :param folder: an empty one
    """
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, timeout=250)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def site_of(env: Path) -> Path:
    (site,) = env.glob("lib/python*/site-packages")
    return site


def bare_environment(env: Path) -> Path:
    """The Python of an environment that sees the libraries of this one, but not the package: ``.pth`` files of a path
    entry do not nest."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True, timeout=120)
    (site_of(env) / "libraries.pth").write_text(f"{LIBRARIES}\n")
    return env / "bin" / "python"

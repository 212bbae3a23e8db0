"""The programs for ``spark-submit`` that come with the package, and the configuration files to begin with.

A clone has them in the folders ``jobs`` and ``conf``; the wheel has copies in this package. Either way
``python -m mama_spark.jobs.publish`` runs one, and ``mama jobs`` lists and copies them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ..contracts.errors import ConfigError

__all__ = ["Job", "configuration_files", "copy", "find", "jobs"]

_HERE = Path(__file__).parent
_INSTALLED = (_HERE / "conf").is_dir()
#: Folder name in a clone, which the texts of these files use too -> where it is.
_FOLDERS = {
    "jobs": _HERE if _INSTALLED else _HERE.parents[2] / "jobs",
    "conf": _HERE / "conf" if _INSTALLED else _HERE.parents[2] / "conf",
}
if not _INSTALLED:
    __path__.append(str(_FOLDERS["jobs"]))


@dataclass(frozen=True)
class Job:
    """One program.

    :ivar path: path of its file
    :ivar summary: one sentence about it
    :ivar needs: requirements of a run
    :ivar files: paths of its file and those that it begins with, as ``jobs/publish.py``
    """

    name: str
    path: Path
    summary: str
    needs: str
    files: tuple[str, ...]


def jobs() -> list[Job]:
    """All jobs, read from their docstrings: to import them takes pyspark."""
    return [_read(path) for path in sorted(_FOLDERS["jobs"].glob("*.py")) if path.name != "__init__.py"]


def find(name: str) -> Job:
    """The job of this name.

    :raises ConfigError: there is no such job
    """
    found = {job.name: job for job in jobs()}
    if name not in found:
        raise ConfigError(f"there is no job {name!r}; there are {', '.join(found)}")
    return found[name]


def configuration_files() -> list[str]:
    """Their names, such as ``publish.toml``."""
    return sorted(path.name for path in _FOLDERS["conf"].iterdir() if path.is_file())


def copy(name: str, folder: Path) -> list[Path]:
    """Copy a job with the files that it begins with, or one configuration file, into a folder.

    :param name: name of a job or of a configuration file
    :param folder: gets them in its folders ``jobs`` and ``conf``
    :return: the copies
    :raises ConfigError: there is no such file, or a copy would replace one; then nothing was copied
    """
    files = (f"conf/{name}",) if name in configuration_files() else find(name).files
    there = [folder / file for file in files if (folder / file).exists()]
    if there:
        raise ConfigError(f"{there[0]} exists, nothing was copied; name another folder: mama jobs --copy {name} FOLDER")
    try:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(_place(file).read_bytes())
    except OSError as e:
        raise ConfigError(f"{name} cannot be copied to {folder}: {e.strerror}") from e
    return [folder / file for file in files]


def _place(file: str) -> Path:
    top, _, name = file.partition("/")
    return _FOLDERS[top] / name


def _read(path: Path) -> Job:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    needs = re.search(r"(?m)^Needs (.+)\.$", text)
    named = _named_files(text)
    for conf in list(named):
        named += _named_files(_place(conf).read_text(encoding="utf-8"))
    files = dict.fromkeys([f"jobs/{path.name}", *named])
    return Job(path.stem, path, text.splitlines()[0], needs[1] if needs else "", tuple(files))


def _named_files(text: str) -> list[str]:
    return [file for file in re.findall(r"\b(?:jobs|conf)/[\w-]+\.\w+", text) if _place(file).is_file()]

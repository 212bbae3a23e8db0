"""Which original programs the tests need, where they are looked for below ``ORIGINALS``, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OriginalProject:
    """:ivar version: that the tests were written with
    :ivar files: below ``ORIGINALS``"""

    name: str
    version: str
    source: str
    files: tuple[str, ...]


_OPENMAMA = (
    OriginalProject(
        "OpenMAMA", "6.3.2 (ce4167fe)", "https://github.com/finos/OpenMAMA",
        ("bin/mamalistenc", "bin/mamapublisherc", "bin/mamainboxc", "bin/quoteticker", "bin/capturereplayc",
         "bin/mamaproducerc_v2", "bin/mamaconsumerc_v2", "lib/libmama.so",
         "config/data.dict"),
    ),
    OriginalProject(
        "OpenMAMA-omnm, its payload", "00af28dd", "https://github.com/cascadium/OpenMAMA-omnm",
        ("lib/libmamaomnmmsgimpl.so",),
    ),
    OriginalProject(
        "OZ, its maintained ZeroMQ bridge", "78233aec", "https://github.com/nyfix/OZ",
        ("oz/lib/libmamazmqimpl.so", "oz/bin/nsd"),
    ),
    OriginalProject(
        "OpenMAMA-zmq, its older ZeroMQ bridge", "7cbfa9ac", "https://github.com/cascadium/OpenMAMA-zmq",
        ("classic/lib/libmamazmqimpl.so",),
    ),
    OriginalProject(
        "libzmq with its draft API", "4.3.5", "https://github.com/zeromq/libzmq", ("lib/libzmq.so",),
    ),
)  # fmt: skip

#: By the test module that needs them, ``test_<key>.py``.
NEEDED: dict[str, tuple[OriginalProject, ...]] = {
    "openmama": _OPENMAMA,
    "openmama_recording": _OPENMAMA,
    "malamute": (
        OriginalProject(
            "Malamute, with CZMQ 4.2.1 (libczmq.so.4) of the system", "1.2.0 (7f208d0)",
            "https://github.com/zeromq/malamute", ("bin/malamute", "lib/libmlm.so"),
        ),
    ),
}  # fmt: skip


def missing(prefix: Path, projects: tuple[OriginalProject, ...]) -> list[str]:
    """Files that are not there."""
    return [name for project in projects for name in project.files if not (prefix / name).exists()]


def described() -> str:
    """What is needed, for people."""
    lines = ["make test-originals ORIGINALS=PREFIX runs the project beside original programs, built below PREFIX:"]
    for projects in dict.fromkeys(NEEDED.values()):
        for project in projects:
            lines.append(f"  {project.name} {project.version}, {project.source}")
            lines += [f"      PREFIX/{name}" for name in project.files]
    return "\n".join(lines)

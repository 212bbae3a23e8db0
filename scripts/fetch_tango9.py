"""Fetch Tango 9 for the tests, into ``.venv/tango9``: PyTango 9.3.6 with an interpreter of its own, DataBaseds on
MariaDB, TangoTest and tango_admin.

The package index has no wheel of PyTango 9.3.6, so all of it comes from Debian 12, with the C library that it was built
for. Nothing is installed on the system: apt keeps its lists in a temporary folder, and the packages (36 MB) are
unpacked. ``bin/python`` and ``bin/run PROGRAM`` run what is there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

PLACE = Path(__file__).resolve().parent.parent / ".venv" / "tango9"
SUITE = "bookworm"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = [
    "python3-tango", "python3-numpy", "python3-six", "python3.11-minimal", "libpython3.11-minimal",
    "libpython3.11-stdlib", "libboost-python1.74.0", "libblas3", "liblapack3", "libgfortran5", "libquadmath0",
    "tango-db", "tango-test", "libtango-tools", "libtango9", "libomniorb4-2", "libomnithread4", "libcos4-2",
    "liblog4tango5v5", "libzmq5", "libnorm1", "libpgm-5.3-0", "libsodium23", "libmariadb3", "mariadb-server-core",
    "mariadb-client-core", "libaio1", "libnuma1", "liburing2", "libpcre2-8-0", "libsystemd0", "libcap2",
    "libgcrypt20", "libgpg-error0", "libedit2", "libbsd0", "libmd0", "libncursesw6", "libtinfo6", "libc6",
    "libgcc-s1", "libstdc++6", "libcrypt1", "libssl3", "libexpat1", "libffi8", "libuuid1", "zlib1g", "libbz2-1.0",
    "liblzma5", "libzstd1", "liblz4-1", "libkrb5-3", "libgssapi-krb5-2", "libk5crypto3", "libkrb5support0",
    "libkeyutils1", "libcom-err2",
]  # fmt: skip
RUN = """#!/bin/sh
# Run a program of Debian 12 with the libraries here: run PROGRAM [ARGUMENT]...
here=$(dirname "$(readlink -f "$0")")/../root
libraries=
for folder in "$here"/lib/*-linux-gnu "$here"/usr/lib/*-linux-gnu "$here"/usr/lib/*-linux-gnu/blas \\
    "$here"/usr/lib/*-linux-gnu/lapack; do libraries=$libraries${libraries:+:}$folder; done
loader=$(echo "$here"/lib*/ld-linux-*.so.?)
exec "$loader" --library-path "$libraries" "$@"
"""
PYTHON = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../root")
export PYTHONHOME=$root/usr PYTHONPATH=$root/usr/lib/python3/dist-packages${PYTHONPATH:+:$PYTHONPATH}
exec "$here/run" "$root/usr/bin/python3.11" "$@"
"""
CONFIGURATION = """
Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "{apt}/state";
Dir::State::status "{apt}/status";
Dir::Cache "{apt}/cache";
APT::Sandbox::User "root";
"""


#: Where programs of Debian name its mirror: apt's sources on Debian, its installer elsewhere.
SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*", "/etc/apt/mirrors/*", "/usr/sbin/debootstrap")


def mirror() -> str:
    """A mirror of Debian: DEBIAN_MIRROR, or the one that this machine uses."""
    texts = [Path(name).read_text(errors="replace") for pattern in SOURCES for name in sorted(glob(pattern))]
    found = re.search(r"https?://[^\s\"']+/debian/?(?=[\s\"']|$)", "\n".join(texts))
    named = os.environ.get("DEBIAN_MIRROR") or (found and found[0])
    if not named:
        sys.exit("no mirror of Debian is known here: apt-get install debootstrap, or name one by DEBIAN_MIRROR")
    return named


def download(apt: Path) -> None:
    """Download the packages into ``apt/debs``."""
    for folder in ("state/lists/partial", "cache/archives/partial", "debs"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror()} {SUITE} main\n")
    (apt / "apt.conf").write_text(CONFIGURATION.format(apt=apt))
    for words in (["update"], ["download", *PACKAGES]):
        subprocess.run(
            ["apt-get", "-qq", *words], cwd=apt / "debs", env={**os.environ, "APT_CONFIG": str(apt / "apt.conf")},
            check=True,
        )  # fmt: skip


def unpack(packages: list[Path], place: Path) -> None:
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package), str(place / "root")], check=True)
    for name, text in (("run", RUN), ("python", PYTHON)):
        program = place / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)


def main() -> None:
    stamp = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamp_file = PLACE / ".stamp"
    if stamp_file.is_file() and stamp_file.read_text() == stamp:
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg") and KEYS.is_file()):
        sys.exit(
            "apt-get, dpkg and debian-archive-keyring are needed for PyTango 9.3.6; the tests that run it will fail"
        )
    print("fetching Tango 9 from Debian 12 (36 MB)", flush=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        download(Path(folder))
        unpack(sorted((Path(folder) / "debs").glob("*.deb")), PLACE)
    check = subprocess.run(
        [PLACE / "bin" / "python", "-c", "import tango; print(tango.Release.version)"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if not check.stdout.startswith("9.3."):
        sys.exit(f"PyTango 9.3.6 does not run here:\n{check.stderr[-2000:]}")
    stamp_file.write_text(stamp)


if __name__ == "__main__":
    main()

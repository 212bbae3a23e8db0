"""The database server of Tango 9 as facilities run it, ``DataBaseds`` on MariaDB; and its C++ programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from mama_spark.testing.waiting import eventually

from tests.support.ports import lasting_port
from tests.support.tango_processes.servers import answers
from tests.support.tango_processes.tango9 import program, run

_END = 15.0
_SYSTEM = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
_DEVICE = (
    "INSERT INTO device (name, domain, family, member, server, class, exported) "
    "VALUES ('{0}/{1}/{2}', '{0}', '{1}', '{2}', '{3}', '{4}', 0);\n"
)
_OWN = (
    "CALL init_history_ids();\n",
    _DEVICE.format("sys", "database", "2", "DataBaseds/2", "DataBase"),
    _DEVICE.format("dserver", "DataBaseds", "2", "DataBaseds/2", "DServer"),
)


def _without_tango() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("TANGO_", "ORB", "MYSQL_"))}


class MariaDatabase:
    """MariaDB and ``DataBaseds 2`` on it, both in ``folder``. ``with`` starts and ends them.

    :ivar port: of DataBaseds
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, 0
        self._programs: list[subprocess.Popen[bytes]] = []
        self._socket = folder / "s"

    @property
    def host(self) -> str:
        """As in ``TANGO_HOST``."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for one in reversed(self._programs):
            one.kill()
            one.wait(_END)
        self._programs.clear()

    def _start(self) -> None:
        (self._folder / "data").mkdir(parents=True)
        share = Path(program("root/usr/share/mysql"))
        tables = [(share / f"{name}.sql").read_text() for name in _SYSTEM]
        self._feed(self._mariadbd("--bootstrap"), "create database mysql;\nuse mysql;\n", *tables)
        words = self._mariadbd(f"--socket={self._socket}", "--skip-grant-tables", "--skip-networking")
        server, log = self._program(words)
        eventually(lambda: "ready for connections" in log.read_text() or server.poll() is not None, "MariaDB")
        schema = Path(program("root/usr/share/tango-db"))
        tables = [(schema / f"{name}.sql").read_text() for name in ("create_db_tables", "stored_proc")]
        client = run("usr/bin/mariadb", "--no-defaults", f"--socket={self._socket}", "--user=root")
        self._feed(client, "create database tango;\nuse tango;\n", *tables, *_OWN)
        self.port = lasting_port()
        reached = {"MYSQL_UNIX_PORT": str(self._socket), "MYSQL_USER": "root", "MYSQL_PASSWORD": "none"}
        words = run("usr/lib/tango/DataBaseds", "2", "-ORBendPoint", f"giop:tcp:127.0.0.1:{self.port}")
        database, log = self._program(words, **reached, TANGO_HOST=self.host)
        eventually(lambda: answers(self.port, "database") or database.poll() is not None, "DataBaseds")
        assert database.poll() is None, log.read_text()

    def _mariadbd(self, *more: str) -> list[str]:
        share = program("root/usr/share/mysql")
        return run(
            "usr/sbin/mariadbd", "--no-defaults", *more, "--user=root", f"--datadir={self._folder / 'data'}",
            f"--tmpdir={self._folder}", f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets",
            "--skip-innodb", "--default-storage-engine=Aria",
        )  # fmt: skip

    def _program(self, words: list[str], **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A running process, and its log."""
        log, given = self._folder / f"{len(self._programs)}.log", {**_without_tango(), **environment}
        with log.open("w") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=given)
        self._programs.append(process)
        return process, log

    def _feed(self, words: list[str], *texts: str) -> None:
        done = subprocess.run(words, input="\n".join(texts), capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[-3000:]

    def add_server(self, server: str, device_class: str, *devices: str) -> None:
        """Register a device server by ``tango_admin``."""
        self.admin("--add-server", server, device_class, ",".join(devices))

    def admin(self, *words: str) -> str:
        """Run ``tango_admin``, the program of C++; returns what it prints.

        :raises AssertionError: its exit code is not 0
        """
        done = subprocess.run(
            run("usr/bin/tango_admin", *words), env={**_without_tango(), "TANGO_HOST": self.host}, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip
        assert not done.returncode, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

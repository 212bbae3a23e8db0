"""Middlewares that keep what is published, for tests that hold on any of them: a server that can be killed, and an
oracle that reads what it holds.

:class:`RestartableNatsServer` is a JetStream server; :class:`RestartableMalamuteBroker` is ``mama broker`` in a process
of its own, whose streams are durable. Streams are known by upper-case names.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import quote

from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines.durable.store_reader import StoreReader, store_path
from mama_spark.malamute.broker.engines.log_queries import unpack_headers
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.nats_accounts import SharedNatsServer
from tests.support.nats.nats_servers import Admin, FetchedMessage

PATIENCE = 60.0


class RestartableBroker(Protocol):
    """What tests may ask of a middleware.

    :ivar id_header: header under which :meth:`messages` shows the id of a message
    """

    id_header: str

    @property
    def port(self) -> int: ...

    def options(self, stream: str) -> dict[str, str]:
        """Of ``mamapub``: where to publish to."""
        ...

    def create(self, stream: str, *topics: str) -> None:
        """A stream that keeps all it gets, on disk, and takes these topics."""
        ...

    def messages(self, stream: str) -> list[FetchedMessage]:
        """Everything it holds, in order."""
        ...

    def counter(self, stream: str) -> Callable[[], int]:
        """A function that says how many it holds, and can be pickled."""
        ...

    def kill(self) -> None:
        """SIGKILL to the server."""
        ...

    def start(self) -> object:
        """After :meth:`kill`: the same server on the same port."""
        ...


class RestartableNatsServer:
    """:param server: may serve other tests, too: the streams are dropped at the end"""

    id_header = "Nats-Msg-Id"

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.admin = Admin(server.url)
        self.kill, self.start = server.kill, server.start

    def __enter__(self) -> Self:
        if not self.server.running:  # the test before failed while it was down
            self.server.start()
        self.admin.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.server.running:
            self.server.start()
        for name in self.admin.api("STREAM.NAMES").get("streams") or []:
            self.admin.api(f"STREAM.DELETE.{name}")
        self.admin.__exit__(kind, error, at)

    @property
    def port(self) -> int:
        return self.server.port

    def options(self, stream: str) -> dict[str, str]:
        return {"url": self.server.url}

    def create(self, stream: str, *topics: str) -> None:
        self.admin.create_stream(stream, list(topics), allow_batched=True)

    def messages(self, stream: str) -> list[FetchedMessage]:
        return self.admin.messages(stream)

    def counter(self, stream: str) -> Callable[[], int]:
        account = self.server.account if isinstance(self.server, SharedNatsServer) else "$G"
        return partial(_held_by_nats, self.server.monitor, account, stream)


def _held_by_nats(monitor: str, account: str, stream: str) -> int:
    with urllib.request.urlopen(f"{monitor}/jsz?streams=true&acc={quote(account)}", timeout=PATIENCE) as page:
        accounts = json.load(page)["account_details"]
    return sum(s["state"]["messages"] for a in accounts for s in a.get("stream_detail", ()) if s["name"] == stream)


class RestartableMalamuteBroker(BrokerProcess):
    """Serves one test after another: :meth:`fresh`.

    :param folder: for its configuration and its streams
    """

    id_header = "Id"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "^[A-Z]+[0-9]*$")
        self._test = ""
        self._tests = itertools.count(1)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def fresh(self) -> Self:
        """The broker, for a test that finds none of its streams written to."""
        self._test = str(next(self._tests))
        if not self.running:  # a test has failed while it was down
            self.start()
        return self

    def named(self, stream: str) -> str:
        """The name that a stream of this test has at the broker."""
        return f"{stream}{self._test}"

    def pause(self) -> None:
        """SIGSTOP, until :meth:`resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def options(self, stream: str) -> dict[str, str]:
        return {"url": self.url, "stream": self.named(stream)}

    def create(self, stream: str, *topics: str) -> None:
        """Streams are made when they are written to first, and take every topic."""

    def messages(self, stream: str) -> list[FetchedMessage]:
        """Read from the store itself, while the broker writes it."""
        with closing(StoreReader(self._store(stream))) as store:
            found = []
            for sequence, _, _, subject, body, _, message_id, packed, _ in store.read(0, 1 << 62, 1 << 62, 1 << 62):
                headers: dict[str, list[str]] = {} if not message_id else {self.id_header: [message_id.decode()]}
                for name, value in unpack_headers(packed):
                    headers.setdefault(name.decode(), []).append(value.decode())
                found.append(FetchedMessage(sequence, subject.decode(), body, headers))
            return found

    def counter(self, stream: str) -> Callable[[], int]:
        return partial(_held_in_store, self._store(stream))

    def _store(self, stream: str) -> Path:
        return store_path(self.streams, self.named(stream).encode())


def _held_in_store(path: Path) -> int:
    try:
        with closing(StoreReader(path)) as store:
            first, last = store.bounds()
            return last + 1 - first
    except ConfigError:  # nobody has written to it yet
        return 0

"""A name server in a thread, peers that find each other by it, and messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.openmama.source.name_server import NameServer
from mama_spark.openmama.wire.peer import OpenMamaPeer, PeerInput
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.testing.waiting import eventually


@contextmanager
def naming(port: int = 0) -> Iterator[NameServer]:
    """A running name server."""
    server, stop = NameServer("127.0.0.1", port), threading.Event()
    server.open()
    thread = threading.Thread(target=server.run, args=(stop.is_set,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join(30)
        server.close()


def url_of(server: NameServer) -> str:
    return f"oz://{server.address.removeprefix('tcp://')}"


@contextmanager
def peer(*urls: str, receiver: bool = False, **settings: Any) -> Iterator[OpenMamaPeer]:
    """An open peer."""
    from dataclasses import replace

    made = OpenMamaPeer(replace(PeerSettings.from_urls(urls, receiver=receiver), **settings))
    made.open()
    try:
        yield made
    finally:
        made.close()


class Watched:
    """Polls peers, and keeps what came to each."""

    def __init__(self, *peers: OpenMamaPeer) -> None:
        self.came = {id(p): PeerInput() for p in peers}
        self._peers = peers

    def of(self, one: OpenMamaPeer) -> PeerInput:
        return self.came[id(one)]

    def poll(self) -> None:
        for one in self._peers:
            new, all_ = one.poll(0.005), self.of(one)
            all_.frames += new.frames
            all_.subscriptions += new.subscriptions
            all_.peers += new.peers

    def until(self, true: Callable[[], Any], what: str) -> None:
        def look() -> Any:
            self.poll()
            return true()

        eventually(look, what)


def message(**values: Any) -> bytes:
    """The bytes of a message with these fields: whole numbers as I64, text as STRING."""
    msg = MamaMsg()
    for name, value in values.items():
        if isinstance(value, str):
            msg.add(FieldType.STRING, name, 0, value)
        else:
            msg.add(FieldType.I64, name, 0, value)
    return encode(msg)

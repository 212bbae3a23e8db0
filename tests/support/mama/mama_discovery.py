"""Source discovery in OpenMAMA's API over the registry inside the process, whose clock the tests move."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama import MamaMsg, SourceDiscovery, SourceDiscoveryCallbacks, SourceFields, SourceRecord, Transport
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import BEST, DEFAULT_FIELDS, OK, ONLINE, decode_source, encode_source
from mama_spark.memory import MemoryBridge
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.testing.waiting import until

TTL = 30.0


def record(name: str = "desk", number: int | None = 7, **more: Any) -> SourceRecord:
    return SourceRecord(name, number, **{"state": ONLINE, "data_state": OK, "qos_rate": BEST, "qos_timeliness": BEST,
                                         "data_dict": "MARKETDATA", **more})  # fmt: skip


def as_bytes(made: SourceRecord, fields: SourceFields = DEFAULT_FIELDS) -> bytes:
    return encode(encode_source(made, fields))


class MamaDiscoverySetup:
    """A registry, and transports to it."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self.registry = MemorySources.get(self.name)
        self.source = MemoryDiscovery(self.name)
        self.source.open()
        self._transports: list[Transport] = []

    def transport(self, discovery: bool = True, **options: Any) -> Transport:
        found = MemoryDiscovery(self.name) if discovery else None
        made = Transport.create("disc", MemoryBridge(self.name), found, **options)
        self._transports.append(made)
        return made

    def listen(self, transport: Transport | None = None, **options: Any) -> DiscoveryRecorder:
        """What a source discovery of a transport tells from now on."""
        ear = DiscoveryRecorder()
        SourceDiscovery.create(ear.callbacks(), None, transport or self.transport(), **options)
        return ear

    def announce(self, made: SourceRecord, announcer: MemoryDiscovery | None = None) -> None:
        (announcer or self.source).announce(SourceKey(*made.key), as_bytes(made), TTL)

    def dying(self, made: SourceRecord) -> MemoryDiscovery:
        """An announcer of its own, to be closed."""
        announcer = MemoryDiscovery(self.name)
        announcer.open()
        self.announce(made, announcer)
        return announcer

    def close(self) -> None:
        for transport in self._transports:
            transport.destroy()
        self.source.close()
        MemorySources.forget(self.name)


class DiscoveryRecorder:
    """What a source discovery tells."""

    def __init__(self, fields: SourceFields = DEFAULT_FIELDS) -> None:
        self.heard: list[Any] = []
        self.closures: list[Any] = []
        self.threads: set[str] = set()
        self._fields = fields

    def callbacks(self) -> SourceDiscoveryCallbacks:
        return SourceDiscoveryCallbacks(on_msg=self.on_msg, on_error=self.on_error, on_image_end=self.on_image_end)

    def on_msg(self, discovery: SourceDiscovery, msg: MamaMsg, closure: Any) -> None:
        self._note(decode_source(msg, self._fields).record, closure)

    def on_error(self, discovery: SourceDiscovery, error: str, closure: Any) -> None:
        self._note(error, closure)

    def on_image_end(self, discovery: SourceDiscovery, closure: Any) -> None:
        self._note("end of the image", closure)

    def _note(self, what: Any, closure: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.closures.append(closure)
        self.heard.append(what)

    def wait(self, n: int) -> list[Any]:
        until(lambda: len(self.heard) >= n)
        return self.heard

"""``python -m bench.malamute.brokers KIND FOLDER [PREFIX]``: one of the brokers that are compared, until its standard
input ends. It prints its port and its process id.

| kind | what it is |
|---|---|
| forward | one ROUTER, one thread; frames of the writer go to the reader as they are: no matching, no engine |
| literal | the stream API as its specification has it: every ACCEPT and every delivery is a message between threads |
| simple, durable | ``mama broker`` with this engine |
| original | the original broker, ``PREFIX/bin/malamute`` |
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import re2
import zmq
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.configuration import BrokerSettings, EngineChoice
from mama_spark.malamute.commands.broker import SWITCH, spare_collector
from mama_spark.malamute.protocol.commands import Ok, Pong, encode

ROUND = 500  #: messages that are read at a time
_OK, _PONG = encode(Ok())[0], encode(Pong())[0]
_PING, _WRITE, _READ, _SEND = 2, 5, 6, 7
Frames = list[bytes]
_CFG = """server
    timeout = 10000
mlm_server
    security
        mechanism = null
    bind
        endpoint = tcp://127.0.0.1:{}
"""


def _string(frame: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + frame[at]
    return frame[at + 1 : end], end


class Plain:
    """What the two brokers by hand share: one ROUTER, served in rounds; answers without a state machine."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.set_hwm(0)
        self.port = self.router.bind_to_random_port("tcp://127.0.0.1")

    def read(self, send: Callable[[bytes, Frames], object]) -> None:
        receive = self.router.recv_multipart
        for _ in range(ROUND):
            try:
                identity, *frames = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frames[0][2] == _SEND:
                send(identity, frames)
            else:
                self.answer(identity, frames[0])

    def answer(self, identity: bytes, frame: bytes) -> None:
        if frame[2] == _PING:
            self.router.send_multipart([identity, _PONG])
        else:
            self.router.send_multipart([identity, _OK])


class Forwarder(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.reader = b""

    def answer(self, identity: bytes, frame: bytes) -> None:
        if frame[2] == _READ:
            self.reader = identity
        super().answer(identity, frame)

    def run(self) -> None:
        send = self.router.send_multipart

        def forward(_: bytes, frames: Frames) -> None:
            send([self.reader, *frames])

        while True:
            self.router.poll()
            self.read(forward)


class Literal(Plain):
    """Commands over a PAIR pipe, deliveries over PUSH and PULL, one message for each; clients are 8-byte pointers."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[bytes, bytes] = {}  # pointer -> routing id
        self.pointers: dict[bytes, bytes] = {}
        self.pipe, theirs = self.context.socket(zmq.PAIR), self.context.socket(zmq.PAIR)
        self.pull, push = self.context.socket(zmq.PULL), self.context.socket(zmq.PUSH)
        for each in (self.pipe, theirs, self.pull, push):
            each.set_hwm(0)
        self.pipe.bind("inproc://pipe")
        theirs.connect("inproc://pipe")
        self.pull.bind("inproc://traffic")
        push.connect("inproc://traffic")
        threading.Thread(target=_engine, args=(theirs, push), daemon=True).start()

    def answer(self, identity: bytes, frame: bytes) -> None:
        if identity not in self.pointers:
            pointer = struct.pack("=Q", len(self.pointers) + 1)
            self.pointers[identity], self.clients[pointer] = pointer, identity
        if frame[2] == _READ:
            self.pipe.send_multipart([b"COMPILE", self.pointers[identity], _string(frame, _string(frame, 3)[1])[0]])
        super().answer(identity, frame)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.pull, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.router in ready:
                self.read(self.accept)
            if self.pull in ready:
                self.deliver()

    def accept(self, identity: bytes, frames: Frames) -> None:
        subject, _ = _string(frames[0], 3)
        self.pipe.send_multipart([b"ACCEPT", self.pointers[identity], b"writer", subject, *frames[1:]])

    def deliver(self) -> None:
        for _ in range(ROUND):
            try:
                pointer, sender, subject, *content = self.pull.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            head = b"\xaa\xa8\x08\x07weather%c%b%c%b" % (len(sender), sender, len(subject), subject)
            self.router.send_multipart([self.clients[pointer], head, *content])


def _engine(pipe: zmq.Socket[bytes], push: zmq.Socket[bytes]) -> None:
    selectors: list[tuple[Any, bytes]] = []
    while True:
        command, client, *rest = pipe.recv_multipart()
        if command == b"COMPILE":
            selectors.append((re2.compile(rest[0]), client))
        elif command == b"ACCEPT":
            sender, subject, *content = rest
            for pattern, reader in selectors:
                if reader != client and pattern.search(subject):
                    push.send_multipart([reader, sender, subject, *content])


def serve_original(folder: Path, prefix: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "broker.cfg").write_text(_CFG.format(port))
    environ = {**os.environ, "ZSYS_LOGSYSTEM": "false"}
    command = [str(prefix / "bin" / "malamute"), "-f", "broker.cfg"]
    with open(os.devnull, "wb") as nowhere:
        broker = subprocess.Popen(command, cwd=folder, env=environ, stdout=nowhere, stderr=nowhere)
    try:
        deadline = time.monotonic() + 30
        while broker.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        _ready(port, broker.pid)
    finally:
        broker.kill()
        broker.wait()


def _ready(port: int | str, pid: int) -> None:
    print(port, pid, flush=True)
    sys.stdin.read()


def serve(kind: str, folder: Path, prefix: Path) -> None:
    if kind == "original":
        serve_original(folder, prefix)
        return
    if kind in ("forward", "literal"):
        broker = Forwarder() if kind == "forward" else Literal()
        threading.Thread(target=broker.run, daemon=True).start()
        _ready(broker.port, os.getpid())
        return
    engines = (EngineChoice(b"", "durable", {"folder": str(folder)}),) if kind == "durable" else ()
    spare_collector()
    sys.setswitchinterval(SWITCH)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines)) as ours:
        _ready(ours.endpoint.rpartition(":")[2], os.getpid())


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3] if len(sys.argv) > 3 else ""))

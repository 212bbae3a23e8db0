"""A program on the C client library of the original Malamute, in a process of its own: sends a burst, or prints what
comes. ``python -m tests.support.malamute.original_client LIBRARY WHAT ENDPOINT ADDRESS TARGET COUNT``.

| what | |
|---|---|
| pub, mail, req | send COUNT messages to the stream, address or service TARGET, and destroy the client at once |
| sub, box, work | read the stream TARGET, mail, or requests to the service TARGET; print what COUNT messages say |
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any

SIZE = 200  #: bytes of a message


def say(text: str) -> None:
    """To standard error: the library logs to standard output."""
    print(text, file=sys.stderr)


class OriginalClient:
    """One ``mlm_client_t``."""

    def __init__(self, library: str, endpoint: str, address: str) -> None:
        self.czmq = ctypes.CDLL("libczmq.so.4", mode=ctypes.RTLD_GLOBAL)
        self.mlm = ctypes.CDLL(library)
        functions: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
            ("mlm_client_new", c_void_p, ()),
            ("mlm_client_connect", c_int, (c_void_p, c_char_p, c_uint32, c_char_p)),
            ("mlm_client_set_producer", c_int, (c_void_p, c_char_p)),
            ("mlm_client_set_consumer", c_int, (c_void_p, c_char_p, c_char_p)),
            ("mlm_client_set_worker", c_int, (c_void_p, c_char_p, c_char_p)),
            ("mlm_client_send", c_int, (c_void_p, c_char_p, c_void_p)),
            ("mlm_client_sendto", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_uint32, c_void_p)),
            ("mlm_client_sendfor", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_uint32, c_void_p)),
            ("mlm_client_recv", c_void_p, (c_void_p,)),
            ("mlm_client_subject", c_char_p, (c_void_p,)),
            ("mlm_client_destroy", None, (c_void_p,)),
        )
        for name, result, arguments in functions:
            self._declare(self.mlm, name, result, arguments)
        functions = (
            ("zsys_set_pipehwm", None, (c_size_t,)),
            ("zsys_set_sndhwm", None, (c_size_t,)),
            ("zsys_set_rcvhwm", None, (c_size_t,)),
            ("zmsg_new", c_void_p, ()),
            ("zmsg_addmem", c_int, (c_void_p, c_char_p, c_size_t)),
            ("zmsg_popstr", c_void_p, (c_void_p,)),
            ("zmsg_destroy", None, (c_void_p,)),
        )
        for name, result, arguments in functions:
            self._declare(self.czmq, name, result, arguments)
        for setting in (self.czmq.zsys_set_pipehwm, self.czmq.zsys_set_sndhwm, self.czmq.zsys_set_rcvhwm):
            setting(0)
        self.client = self.mlm.mlm_client_new()
        self.check(self.mlm.mlm_client_connect(self.client, endpoint.encode(), 20_000, address.encode()))

    @staticmethod
    def _declare(library: ctypes.CDLL, name: str, result: object, arguments: tuple[object, ...]) -> None:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments

    @staticmethod
    def check(code: int) -> None:
        if code:
            raise SystemExit(f"the client library returned {code}")

    def send(self, what: str, target: bytes, count: int) -> None:
        if what == "pub":
            self.check(self.mlm.mlm_client_set_producer(self.client, target))
        ways: dict[str, Callable[[bytes, c_void_p], int]] = {
            "pub": lambda subject, msg: int(self.mlm.mlm_client_send(self.client, subject, byref(msg))),
            "mail": lambda subject, msg: int(
                self.mlm.mlm_client_sendto(self.client, target, subject, b"", 0, byref(msg))
            ),
            "req": lambda subject, msg: int(
                self.mlm.mlm_client_sendfor(self.client, target, subject, b"", 0, byref(msg))
            ),
        }
        for number in range(count):
            message = c_void_p(self.czmq.zmsg_new())
            body = (b"%d|" % number).ljust(SIZE, b"x")
            self.check(self.czmq.zmsg_addmem(message, body, len(body)))
            self.check(ways[what](b"s.%d" % (number % 10), message))

    def receive(self, what: str, target: bytes, count: int) -> None:
        if what == "sub":
            self.check(self.mlm.mlm_client_set_consumer(self.client, target, b"."))
        elif what == "work":
            self.check(self.mlm.mlm_client_set_worker(self.client, target, b"."))
        say("UP")
        for _ in range(count):
            message = c_void_p(self.mlm.mlm_client_recv(self.client))
            if not message:
                raise SystemExit("interrupted")
            text = ctypes.string_at(self.czmq.zmsg_popstr(message)).decode()
            say(f"{self.mlm.mlm_client_subject(self.client).decode()} {text.partition('|')[0]}")
            self.czmq.zmsg_destroy(byref(message))

    def destroy(self) -> None:
        self.mlm.mlm_client_destroy(byref(c_void_p(self.client)))


def main(library: str, what: str, endpoint: str, address: str, target: str, count: str) -> None:
    client = OriginalClient(library, endpoint, address)
    way = client.send if what in ("pub", "mail", "req") else client.receive
    way(what, target.encode(), int(count))
    client.destroy()
    say("BYE")


if __name__ == "__main__":
    main(*sys.argv[1:])

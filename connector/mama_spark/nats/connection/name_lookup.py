"""Looks up the addresses of a host, without waiting: the system may take half a minute for it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

Addresses = list[tuple[Any, ...]]  #: as of :func:`socket.getaddrinfo`


class NameLookup:
    """Begins when it is made, on a thread that ends when the system has answered."""

    def __init__(self, host: str, port: int) -> None:
        self._found: Addresses | OSError | None = None
        self.told, theirs = socket.socketpair()  #: can be read when there is a result
        thread = threading.Thread(target=self._run, args=(host, port, theirs), name="mama-nats-lookup", daemon=True)
        thread.start()

    def _run(self, host: str, port: int, told: socket.socket) -> None:
        with told:
            try:
                self._found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as e:  # ValueError: it is no name
                self._found = e if isinstance(e, OSError) else OSError(str(e))

    def result(self) -> Addresses | None:
        """None: there is none yet.

        :raises OSError: the name cannot be resolved
        """
        if isinstance(self._found, OSError):
            raise self._found
        return self._found


def numeric(host: str, port: int) -> Addresses | None:
    """Of an address that needs no lookup; None: it is a name."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return None

"""Ports for servers that are ended and started again at their place.

While such a server is down, the system may give its port to somebody else, if it is one of those that the system gives:
to who asks for any port, and to every outgoing connection. The ports here are below those, and belong to the process
that took them until it ends.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BELOW = 10_000
_chance = random.Random()  # not the one that tests seed
_kept: list[int] = []


def lasting_port() -> int:
    """A port of 127.0.0.1 that nobody listens at, and no other process of these tests will."""
    end = int(_GIVEN.read_text().split()[0])
    while True:
        port = _chance.randrange(max(1024, end - _BELOW), end)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0mama-spark-tests-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:  # somebody else's
            claim.close()
            continue
        _kept.append(claim.detach())
        return port

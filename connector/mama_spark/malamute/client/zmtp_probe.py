"""Finds out which security mechanism a broker wants, from the ZMTP greeting (RFC 23).

For a CURVE client with a wrong server key, ZeroMQ reports only that the handshake failed, as it does when the peer
dies. The greeting tells the two apart: it comes from a living peer and names its mechanism.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

_SIGNATURE = b"\xff" + b"\0" * 7 + b"\x01\x7f"
_GREETING = 64
#: As much of a greeting as makes the peer send all of its own: version 3.0. A mechanism it refuses would end it.
_OURS = _SIGNATURE + b"\x03\x00"


def mechanism_of(endpoint: str, timeout: float) -> str | None:
    """``NULL``, ``PLAIN`` or ``CURVE``; None when no peer at ``tcp://host:port`` greets within ``timeout`` seconds."""
    parts = urlsplit(endpoint)
    end = time.monotonic() + timeout
    try:
        if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
            return None
        with socket.create_connection((parts.hostname, parts.port), timeout) as peer:
            peer.sendall(_OURS)
            came = b""
            while len(came) < _GREETING:
                peer.settimeout(max(0.001, end - time.monotonic()))
                some = peer.recv(_GREETING - len(came))
                if not some:
                    return None
                came += some
    except (OSError, ValueError):
        return None
    if came[0] != _SIGNATURE[0] or came[9] != _SIGNATURE[9]:
        return None
    return came[12:32].rstrip(b"\0").decode("ascii", "replace")

"""Finds out whether a broker has another key than the configured one.

For a CURVE client with a wrong server key, ZeroMQ reports only a failed handshake, as it does when the peer ends. The
ZMTP greeting (RFC 23) distinguishes the two cases: only a running peer sends one, with its mechanism.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

#: Successive handshakes that fail without a reason before the broker's mechanism is probed, and seconds for the probe.
_PROBE_AFTER = 2
_PROBE_TIMEOUT = 1.0
_SIGNATURE = b"\xff" + b"\0" * 7 + b"\x01\x7f"
_GREETING = 64
#: The begin of a greeting, up to version 3.0: a peer answers with its whole one. No mechanism: a peer that refuses it
#: would close the connection.
_OURS = _SIGNATURE + b"\x03\x00"


class ServerKeyCheck:
    """Finds out whether a broker has another CURVE key than the configured one; ``configured``: there is one."""

    def __init__(self, configured: bool) -> None:
        self._configured = configured
        self._unexplained = 0  # successive handshakes that failed without a reason

    def handshake_succeeded(self) -> None:
        self._unexplained = 0

    def handshake_failed(self, endpoint: str, connecting: bool) -> bool:
        """Whether the broker has CURVE, and so another key, after a handshake failed without a reason; ``connecting``:
        none has succeeded yet."""
        self._unexplained += 1
        probe = self._configured and connecting and self._unexplained >= _PROBE_AFTER
        return probe and mechanism_of(endpoint, _PROBE_TIMEOUT) == "CURVE"


def mechanism_of(endpoint: str, timeout: float) -> str | None:
    """``NULL``, ``PLAIN`` or ``CURVE``; None without a greeting from ``tcp://host:port`` within ``timeout`` seconds."""
    parts = urlsplit(endpoint)
    end = time.monotonic() + timeout
    try:
        if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
            return None
        with socket.create_connection((parts.hostname, parts.port), timeout) as peer:
            peer.sendall(_OURS)
            received = b""
            while len(received) < _GREETING:
                peer.settimeout(max(0.001, end - time.monotonic()))
                chunk = peer.recv(_GREETING - len(received))
                if not chunk:
                    return None
                received += chunk
    except (OSError, ValueError):
        return None
    if received[0] != _SIGNATURE[0] or received[9] != _SIGNATURE[9]:
        return None
    return received[12:32].rstrip(b"\0").decode("ascii", "replace")

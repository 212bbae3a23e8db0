"""Authentication of clients: PLAIN logins or CURVE keys, checked before a client can send a command (ML-27)."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.protocol.curve_keys import check_curve_keys
from mama_spark.options.declare import option
from mama_spark.options.values import nonempty_text, texts

logger = logging.getLogger(__name__)
_ZAP = b"1.0"
_STOP_POLL = 0.05  #: seconds between checks of the stop flag


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """The security mechanism; without one, any client may connect and nothing is encrypted. PLAIN passwords (``users``:
    by user name) are sent unencrypted: for trusted networks only."""

    users: Mapping[str, str] = field(default_factory=dict)
    curve_secret_key: str | None = option(
        "Z85 key", nonempty_text, None, "security", "CURVE; the ready line shows the public key.",
        secret=True, shown="none: nothing is encrypted",
    )  # fmt: skip
    curve_clients: tuple[str, ...] | None = option(
        "list of Z85 keys", texts, None, "security", "Public keys of the clients that may connect.",
        shown="all that know the broker's key",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.users and self.curve_secret_key:
            raise ConfigError("security is by users (PLAIN) or by keys (CURVE), not both")
        if self.curve_clients is not None and self.curve_secret_key is None:
            raise ConfigError("security by keys needs the secret key of the broker")
        check_curve_keys((self.curve_secret_key, *(self.curve_clients or ())))
        if any(not user or not password for user, password in self.users.items()):
            raise ConfigError("a user without a name or without a password")

    @property
    def mechanism(self) -> str:
        return "PLAIN" if self.users else "CURVE" if self.curve_secret_key else "none"

    @property
    def curve_public_key(self) -> str | None:
        if self.curve_secret_key is None:
            return None
        return zmq.curve_public(self.curve_secret_key.encode()).decode()


class ZapHandler:
    """Authenticates clients of one context's sockets, in its own thread, until :meth:`stop`. ZeroMQ sends requests to
    ``inproc://zeromq.zap.01`` (ZAP, RFC 27) and accepts a client only after the answer 200."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], security: Security) -> None:
        self.security = security
        self.refused = 0
        self._keys = None if security.curve_clients is None else {z85.decode(key) for key in security.curve_clients}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if security.mechanism == "none":
            return
        socket = context.socket(zmq.REP)
        socket.linger = 0
        socket.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._run, args=(socket,), name="mama-guard", daemon=True)
        self._thread.start()

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Require authentication on the socket, before it is bound."""
        if self.security.mechanism == "none":
            return
        socket.zap_domain = b"mama"
        if self.security.curve_secret_key is not None:
            socket.curve_server = True
            socket.curve_secretkey = self.security.curve_secret_key.encode()
        else:
            socket.plain_server = True

    def stop(self) -> None:
        """Stop the thread, before the context is terminated. Idempotent."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while not self._stopping.is_set():
            if socket.poll(round(_STOP_POLL * 1000)):
                socket.send_multipart(self._answer(socket.recv_multipart()))
        socket.close(0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request, _, address, _, mechanism, *credentials = [*question, *[b""] * (6 - len(question))]
        if version == _ZAP and self._is_allowed(mechanism, credentials):
            return [_ZAP, request, b"200", b"", credentials[0] if mechanism == b"PLAIN" else b"", b""]
        self.refused += 1
        logger.warning("a client at %s was refused (%s)", address.decode("ascii", "replace"), self.security.mechanism)
        return [_ZAP, request, b"400", b"refused", b"", b""]

    def _is_allowed(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        if mechanism == b"CURVE" and len(credentials) == 1:
            return self._keys is None or credentials[0] in self._keys
        if mechanism == b"PLAIN" and len(credentials) == 2:
            user, password = credentials
            expected = self.security.users.get(user.decode("utf-8", "replace"))
            return expected is not None and hmac.compare_digest(expected.encode(), password)
        return False

"""TLS between bytes: what is read and written goes through it, and no socket is known here."""

from __future__ import annotations

import ssl

_READ = 256 * 1024


class TlsChannel:
    """One connection.

    :param name: that the certificate of the server must have
    :ivar secured: the handshake is done
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=name)
        self.secured = False

    def receive(self, data: bytes) -> bytes:
        """What the other end says, given what came from the socket; go on with the handshake before that.

        :raises ssl.SSLError: the certificate is not trusted, or the other end wants another one
        """
        if data:
            self._received.write(data)
        plain = []
        try:
            if not self.secured:
                self._tls.do_handshake()
                self.secured = True
            while said := self._tls.read(_READ):
                plain.append(said)
        except ssl.SSLWantReadError:
            pass
        return b"".join(plain)

    def send(self, data: bytes) -> None:
        """Encrypt; :meth:`to_send` gives the result."""
        self._tls.write(data)

    def to_send(self) -> bytes:
        """What the socket is to write: of the handshake, or of what was sent."""
        return self._to_send.read()

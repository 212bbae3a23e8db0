"""TLS: its context, a channel between bytes without a socket, and advice for its errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import safe_cause, show_path

from ..settings import NatsSettings


def tls_context(settings: NatsSettings) -> ssl.SSLContext:
    """Context for these settings. ConfigError: a file cannot be read."""
    with _reads_tls(settings, "tlsCa", "tls_ca"):
        context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert:
        with _reads_tls(settings, "tlsCert and tlsKey", "tls_cert", "tls_key"):
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


@contextmanager
def _reads_tls(settings: NatsSettings, options: str, *names: str) -> Iterator[None]:
    """Map errors of TLS files. ConfigError: one is missing, or holds something else; OpenSSL does not say which."""
    try:
        yield
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        paths = " and ".join(show_path(getattr(settings, name)) for name in names if getattr(settings, name))
        raise ConfigError(f"cannot read the TLS files of {options} ({paths}): {e}") from safe_cause(e)


_UNTRUSTED = (
    "option tlsCa names the authority that signed the server's certificate, a PEM file; without it those of the system "
    "count"
)
_WRONG_NAME = "the url must name the server as its certificate does (subjectAltName)"
#: Advice for the checks that only Python 3.13 and newer make.
_STRICT = (
    "this Python checks certificates strictly (RFC 5280): make the authority of option tlsCa with openssl req -x509 … "
    "-addext keyUsage=critical,keyCertSign,cRLSign, and sign the server's certificate by it anew"
)
#: Advice for a certificate, by the number of OpenSSL's error.
_CERTIFICATE = {
    **dict.fromkeys((18, 19, 20, 21), _UNTRUSTED),  # self-signed, or issuer not found
    **dict.fromkeys((62, 64), _WRONG_NAME),
    **dict.fromkeys(range(79, 95), _STRICT),
}
#: Advice for a TLS connection, by OpenSSL's reason.
_TLS = {
    "WRONG_VERSION_NUMBER": "this server greets before TLS: leave out option tlsHandshakeFirst",
    **dict.fromkeys(
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA"),
        "the server wants a certificate that it trusts: options tlsCert and tlsKey",
    ),
}


def failure(error: OSError) -> str:
    """Text of a network or TLS error, with advice."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = _CERTIFICATE.get(error.verify_code)
    else:
        cure = _TLS.get(error.reason) if isinstance(error, ssl.SSLError) else None
    text = str(error) or type(error).__name__
    return text if cure is None else f"{text}; {cure}"


_READ = 256 * 1024


class TlsChannel:
    """TLS of one connection.

    :param name: server name that its certificate must have
    :ivar secured: the handshake is done
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=name)
        self.secured = False

    def receive(self, data: bytes) -> bytes:
        """Continue the handshake, or decrypt ``data`` from the socket. ssl.SSLError: the certificate is not trusted, or
        the other end wants another one."""
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
        """Bytes for the socket: of the handshake, or encrypted ones."""
        return self._to_send.read()

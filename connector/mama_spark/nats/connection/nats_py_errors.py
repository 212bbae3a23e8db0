"""Maps exceptions of nats-py to the errors of :mod:`mama_spark.contracts.errors`, by one table; unknown ones have a
default."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import nats.errors
import nats.js.errors

from mama_spark.contracts.errors import (
    BackgroundTaskFailed,
    ConfigError,
    MamaError,
    NoResponders,
    OutcomeUnknown,
    Rejected,
    TooLarge,
    Unavailable,
)

_E, _J = nats.errors, nats.js.errors

#: Exception of nats-py -> our error when connecting, requesting or publishing. Base classes are looked up, too.
CLIENT: Mapping[type[BaseException], type[MamaError]] = {
    _E.Error: Unavailable,
    _E.AuthorizationError: ConfigError,
    _E.BadHeaderError: Rejected,
    _E.BadSubjectError: Rejected,
    _E.BadSubscriptionError: ConfigError,
    _E.BadTimeoutError: ConfigError,
    _E.ConnectionClosedError: Unavailable,
    _E.ConnectionDrainingError: Unavailable,
    _E.ConnectionReconnectingError: Unavailable,
    _E.DrainTimeoutError: Unavailable,
    _E.FlushTimeoutError: Unavailable,
    _E.InvalidCallbackTypeError: ConfigError,
    _E.InvalidUserCredentialsError: ConfigError,
    _E.JsonParseError: Unavailable,
    _E.MaxPayloadError: TooLarge,
    _E.MsgAlreadyAckdError: Rejected,
    _E.NoRespondersError: NoResponders,
    _E.NoServersError: Unavailable,
    _E.NotJSMessageError: Rejected,
    _E.OutboundBufferLimitError: Unavailable,
    _E.ProtocolError: Unavailable,
    _E.SecureConnFailedError: ConfigError,
    _E.SecureConnRequiredError: ConfigError,
    _E.SecureConnWantedError: ConfigError,
    _E.SlowConsumerError: OutcomeUnknown,
    _E.StaleConnectionError: Unavailable,
    _E.TimeoutError: Unavailable,
    _E.UnexpectedEOF: Unavailable,
    _J.Error: Unavailable,
    _J.APIError: Rejected,
    _J.BadRequestError: ConfigError,
    _J.NotFoundError: ConfigError,
    _J.ServerError: Unavailable,
    _J.ServiceUnavailableError: Unavailable,
    _J.NoStreamResponseError: NoResponders,
    ssl.SSLError: ConfigError,
    OSError: Unavailable,
    asyncio.TimeoutError: Unavailable,
    ValueError: ConfigError,
}

#: The same by name, of modules that only some connections need and that take long to import.
BY_NAME: Mapping[str, type[MamaError]] = {
    "nkeys.NkeysError": ConfigError,  # the seed, or that in the credentials file, is invalid
}


def from_client(error: BaseException) -> MamaError:
    """Our error for an exception of nats-py or of the network."""
    if isinstance(error, MamaError):
        return error
    text = (str(error) or type(error).__name__) + _cure_of_tls(error)
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        ways = "options user and password, token, nkeySeed, credentials"
        return ConfigError(f"the server refuses the credentials: {text}; correct what logs in ({ways}, or the url)")
    for base in type(error).__mro__:
        kind = CLIENT.get(base) or BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if kind is not None:
            return kind(text)
    return BackgroundTaskFailed(f"{type(error).__name__}: {text}")


_UNTRUSTED = (
    "option tlsCa names the authority that signed the server's certificate, a PEM file; without it those of the system "
    "count"
)
_WRONG_NAME = "the url must name the server as its certificate does (subjectAltName)"
#: What Python 3.13 and newer want beyond earlier ones.
_STRICT = (
    "this Python checks certificates strictly (RFC 5280): make the authority of option tlsCa with openssl req -x509 … "
    "-addext keyUsage=critical,keyCertSign,cRLSign, and sign the server's certificate by it anew"
)
#: What to do about a certificate, by the number of OpenSSL's error.
_CERTIFICATE = {
    **dict.fromkeys((18, 19, 20, 21), _UNTRUSTED),  # self-signed, or the issuer is not found
    **dict.fromkeys((62, 64), _WRONG_NAME),
    **dict.fromkeys(range(79, 95), _STRICT),
}
#: What to do about a TLS connection, by OpenSSL's reason.
_TLS = {
    "WRONG_VERSION_NUMBER": "this server greets before TLS: leave out option tlsHandshakeFirst",
    **dict.fromkeys(
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA"),
        "the server wants a certificate that it trusts: options tlsCert and tlsKey",
    ),
}


def _cure_of_tls(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = _CERTIFICATE.get(error.verify_code)
    else:
        cure = _TLS.get(error.reason) if isinstance(error, ssl.SSLError) else None
    return "" if cure is None else f"; {cure}"

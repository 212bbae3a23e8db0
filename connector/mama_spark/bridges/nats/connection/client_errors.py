"""What nats-py raises, translated into the errors of :mod:`mama_spark.errors`: one table, and nothing is unmapped."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import nats.errors
import nats.js.errors
import nkeys  # type: ignore[import-untyped]

from mama_spark.errors import (
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

#: nats-py's exceptions -> what they mean when connecting, asking or publishing. Looked up along the class's bases.
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
    nkeys.NkeysError: ConfigError,  # of the seed, or of the one in the credentials file
    ssl.SSLError: ConfigError,
    OSError: Unavailable,
    asyncio.TimeoutError: Unavailable,
    ValueError: ConfigError,
}


def from_client(error: BaseException) -> MamaError:
    """One of our errors for one of nats-py's (or of the network below it)."""
    if isinstance(error, MamaError):
        return error
    text = str(error) or type(error).__name__
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        ways = "options user and password, token, nkeySeed, credentials"
        return ConfigError(f"the server refuses the credentials: {text}; correct what logs in ({ways}, or the url)")
    for base in type(error).__mro__:
        kind = CLIENT.get(base)
        if kind is not None:
            return kind(text)
    return BackgroundTaskFailed(f"{type(error).__name__}: {text}")

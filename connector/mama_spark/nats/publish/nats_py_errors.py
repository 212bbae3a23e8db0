"""Maps exceptions of a caller's nats-py client to errors of this package, by one table and a default."""

from __future__ import annotations

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

#: Exception of nats-py -> our error when requesting or publishing; others have that of their nearest base class.
CLIENT: Mapping[type[BaseException], type[MamaError]] = {
    _E.Error: Unavailable,
    _E.AuthorizationError: ConfigError,
    _E.BadHeaderError: Rejected,
    _E.BadSubjectError: Rejected,
    _E.BadSubscriptionError: ConfigError,
    _E.BadTimeoutError: ConfigError,
    _E.InvalidCallbackTypeError: ConfigError,
    _E.InvalidUserCredentialsError: ConfigError,
    _E.MaxPayloadError: TooLarge,
    _E.MsgAlreadyAckdError: Rejected,
    _E.NoRespondersError: NoResponders,
    _E.NotJSMessageError: Rejected,
    _E.SecureConnFailedError: ConfigError,
    _E.SecureConnRequiredError: ConfigError,
    _E.SecureConnWantedError: ConfigError,
    _E.SlowConsumerError: OutcomeUnknown,
    _J.APIError: Rejected,
    _J.BadRequestError: ConfigError,
    _J.NotFoundError: ConfigError,
    _J.ServerError: Unavailable,
    _J.ServiceUnavailableError: Unavailable,
    _J.NoStreamResponseError: NoResponders,
    OSError: Unavailable,
    ValueError: ConfigError,
}


def from_client(error: BaseException) -> MamaError:
    """Our error for an exception of nats-py or of the network."""
    if isinstance(error, MamaError):
        return error
    text = str(error) or type(error).__name__
    for base in type(error).__mro__:
        if (kind := CLIENT.get(base)) is not None:
            return kind(text)
    return BackgroundTaskFailed(f"{type(error).__name__}: {text}")

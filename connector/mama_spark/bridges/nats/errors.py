"""What the server and nats-py say, translated into the errors of :mod:`mama_spark.errors`: one table each.

A number that the table does not know is a refusal for good, unless its HTTP-like code says "not now".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import nats.errors
import nats.js.errors

from ...errors import (
    ConfigError,
    ExpectationFailed,
    InProcess,
    LoopDied,
    MamaError,
    NoResponders,
    NotEntitled,
    NotReady,
    OutOfResources,
    Overrun,
    PublishError,
    Refused,
    TooLarge,
    Unavailable,
    Uncertain,
)

UNKNOWN_BATCH = 10208

#: JetStream ``err_code`` of a publish reply -> error.
BY_CODE: Mapping[int, type[PublishError]] = {
    10008: OutOfResources,  # JetStream system temporarily unavailable
    10009: OutOfResources,  # no leader of the cluster
    10023: OutOfResources,  # insufficient resources
    10028: OutOfResources,  # resource limits exceeded for the account
    10039: OutOfResources,  # JetStream not enabled for the account
    10047: OutOfResources,  # insufficient storage
    10054: TooLarge,  # message size exceeds the stream's maximum
    10060: ExpectationFailed,  # expected stream
    10070: ExpectationFailed,  # expected last message id
    10071: ExpectationFailed,  # expected last sequence
    10076: OutOfResources,  # JetStream not enabled
    10077: Refused,  # maximum messages, bytes or messages per subject
    10097: TooLarge,  # header block larger than 64 KiB
    10109: Refused,  # sealed
    10158: InProcess,  # same id proposed and not committed
    10163: NotReady,  # expectation cannot be checked yet
    10164: ExpectationFailed,  # expectation on another subject
    10165: Refused,  # invalid TTL
    10166: Refused,  # TTL is off
    10167: Overrun,  # too many requests
    10174: Refused,  # atomic publish is off
    10176: Refused,  # atomic batch incomplete
    10201: Refused,  # duplicate id in an atomic batch
    10205: Refused,  # fast ingest is off
    10206: Refused,  # fast ingest: pattern
    10207: Refused,  # fast ingest: id
    UNKNOWN_BATCH: Uncertain,  # fast ingest: what came after the last flow ack is unknown
    10210: Overrun,  # too many atomic batches
    10211: Overrun,  # too many fast batches
}

#: HTTP-like code of a reply whose ``err_code`` is not in the table.
BY_HTTP: Mapping[int, type[PublishError]] = {
    408: Uncertain,
    409: InProcess,
    429: Overrun,
    503: OutOfResources,
}


def from_reply(code: int, err_code: int, description: str) -> PublishError:
    """The error of a negative acknowledgement."""
    kind = BY_CODE.get(err_code) or BY_HTTP.get(code) or Refused
    return kind(description, err_code or code)


def no_responders(subject: str = "") -> NoResponders:
    """The error of an empty 503."""
    where = f"topic {subject!r}" if subject else "this topic"
    return NoResponders(f"no stream, or no leader, takes {where} now", 503)


_E, _J = nats.errors, nats.js.errors

#: nats-py's exceptions -> what they mean when connecting, asking or publishing. Looked up along the class's bases.
CLIENT: Mapping[type[BaseException], type[MamaError]] = {
    _E.Error: Unavailable,
    _E.AuthorizationError: ConfigError,
    _E.BadHeaderError: Refused,
    _E.BadSubjectError: Refused,
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
    _E.MsgAlreadyAckdError: Refused,
    _E.NoRespondersError: NoResponders,
    _E.NoServersError: Unavailable,
    _E.NotJSMessageError: Refused,
    _E.OutboundBufferLimitError: Unavailable,
    _E.ProtocolError: Unavailable,
    _E.SecureConnFailedError: ConfigError,
    _E.SecureConnRequiredError: ConfigError,
    _E.SecureConnWantedError: ConfigError,
    _E.SlowConsumerError: Uncertain,
    _E.StaleConnectionError: Unavailable,
    _E.TimeoutError: Unavailable,
    _E.UnexpectedEOF: Unavailable,
    _J.Error: Unavailable,
    _J.APIError: Refused,
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


def from_client(error: BaseException) -> MamaError:
    """One of our errors for one of nats-py's (or of the network below it)."""
    if isinstance(error, MamaError):
        return error
    text = str(error) or type(error).__name__
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        return ConfigError(f"the server refuses the credentials: {text}")
    for base in type(error).__mro__:
        kind = CLIENT.get(base)
        if kind is not None:
            return kind(text)
    return LoopDied(f"{type(error).__name__}: {text}")


def denied(text: str) -> tuple[str, str] | None:
    """``("publish" | "subscription", subject)`` of a permission violation (nats-py lower-cases the text)."""
    lower = text.lower()
    for kind in ("publish", "subscription"):
        mark = f"permissions violation for {kind} to "
        at = lower.find(mark)
        if at >= 0:
            subject = text[at + len(mark) :].strip().strip("'")
            return kind, subject.partition('" using queue')[0].strip('"')
    return None


def not_entitled(subject: str) -> NotEntitled:
    """The error of a publish that the server's permissions forbid."""
    return NotEntitled(f"no permission to publish to {subject!r}")

"""Maps error codes of the server (NATS ADR-7) to the errors of :mod:`mama_spark.contracts.errors`, by one table. Pure.

The class of the error says whether it is final. An ``err_code`` that is not in the table is a final rejection, unless
the HTTP-like code beside it means a state that passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mama_spark.contracts.errors import (
    ConfigError,
    DuplicateInFlight,
    ExpectationFailed,
    NoResponders,
    NotReady,
    OutcomeUnknown,
    OutOfResources,
    PermissionDenied,
    PublishError,
    RateLimited,
    Rejected,
    TooLarge,
)

from .subjects import to_allow

#: Status of an answer without payload: no subscriber to the subject. In an ``ApiError``: JetStream is off there.
NO_RESPONDERS = 503
STORE_FAILED = 10077
NOT_BATCHED = 10205
UNKNOWN_BATCH = 10208

#: JetStream ``err_code`` of a reply -> error.
BY_CODE: Mapping[int, type[PublishError]] = {
    10002: OutOfResources,  # resource limits exceeded for the account
    10008: OutOfResources,  # JetStream system temporarily unavailable
    10009: OutOfResources,  # no leader of the cluster
    10023: OutOfResources,  # insufficient resources
    10028: OutOfResources,  # insufficient memory
    10039: OutOfResources,  # JetStream not enabled for the account
    10047: OutOfResources,  # insufficient storage
    10052: Rejected,  # invalid configuration of a stream or consumer
    10054: TooLarge,  # message size exceeds the stream's maximum
    10060: ExpectationFailed,  # expected stream
    10070: ExpectationFailed,  # expected last message id
    10071: ExpectationFailed,  # expected last sequence
    10074: Rejected,  # replicas without a cluster
    10076: OutOfResources,  # JetStream not enabled
    STORE_FAILED: OutOfResources,  # the text tells the reason: see _OF_STORE
    10097: TooLarge,  # header block larger than 64 KiB
    10109: Rejected,  # sealed
    10111: Rejected,  # rollup not permitted, or of another value
    10158: DuplicateInFlight,  # same id proposed and not committed
    10163: NotReady,  # expectation cannot be checked yet
    10164: ExpectationFailed,  # expectation on another subject
    10165: Rejected,  # invalid TTL
    10166: Rejected,  # TTL is off
    10167: RateLimited,  # too many requests
    10174: Rejected,  # atomic publish is off
    10176: Rejected,  # atomic batch incomplete
    10201: Rejected,  # duplicate id in an atomic batch
    NOT_BATCHED: Rejected,  # fast ingest is off
    10206: Rejected,  # fast ingest: pattern
    10207: Rejected,  # fast ingest: id
    UNKNOWN_BATCH: OutcomeUnknown,  # fast ingest: unknown outcome of messages after the last flow ack
    10210: RateLimited,  # too many atomic batches
    10211: RateLimited,  # too many fast batches
}

#: Texts, in lower case, of a working store that takes no message: its stream is full (discard new), or the message is
#: larger than a file store takes. Others tell of a store that is closed, or cannot write.
_OF_STORE: Mapping[str, type[PublishError]] = {
    "maximum messages exceeded": Rejected,
    "maximum bytes exceeded": Rejected,
    "maximum messages per subject exceeded": Rejected,
    "message to large": TooLarge,
    "message too large": TooLarge,
}
_STORAGE_USED_UP = (
    "the streams take more storage than nats-server allows itself, which is max_file_store, or else a share of the "
    "disk that was free when it was started: little or nothing after a start on a full disk. Make room on its disk, "
    "or raise max_file_store, then restart it; the message is not stored"
)
#: Cause and remedy of errors whose text names neither, by ``err_code``.
CURES: Mapping[int, str] = {
    10002: "the JetStream limits of this account are reached: delete messages of its streams, or raise the limits",
    10023: _STORAGE_USED_UP,
    10028: "streams in memory take all of max_mem of nats-server: delete messages, or raise it",
    10047: _STORAGE_USED_UP,
}

#: HTTP-like code of a reply whose ``err_code`` is not in the table; from 500 on the server may be ready later.
BY_HTTP: Mapping[int, type[PublishError]] = {
    408: OutcomeUnknown,
    409: DuplicateInFlight,
    429: RateLimited,
}


def from_reply(code: int, err_code: int, description: str) -> PublishError:
    kind = BY_CODE.get(err_code) or BY_HTTP.get(code) or (OutOfResources if code >= 500 else Rejected)
    if err_code == STORE_FAILED:
        kind = _OF_STORE.get(description.lower(), kind)
    cure = CURES.get(err_code)
    return kind(description if cure is None else f"{description} ({cure})", err_code or code)


def no_responders(subject: str = "") -> NoResponders:
    """The error of an empty 503."""
    where = f"topic {subject!r}" if subject else "this topic"
    return NoResponders(f"no stream, or no leader, takes {where} now", NO_RESPONDERS)


#: As ``%q`` of Go writes it: a quote and a backslash are escaped.
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "((?:[^"\\]|\\.)*)"', re.IGNORECASE)


def denied(text: str) -> tuple[str, str] | None:
    """``("publish" | "subscription", subject)`` of a permission violation (nats-py lower-cases the text)."""
    found = _DENIED.search(text)
    return None if found is None else (found[1].lower(), re.sub(r"\\(.)", r"\1", found[2]))


def not_entitled(subject: str) -> PermissionDenied:
    return PermissionDenied(f"no permission to publish to {subject!r}")


def not_subscribed(kind: str, subject: str) -> ConfigError:
    """The error of a subscription, by the kind of its :class:`~.protocol.client_events.Denied`."""
    if kind == "limit":
        too_many = "the server takes no more of them on one connection; raise max_subscriptions, of server or account"
        return ConfigError(f"no subscription to {subject!r}: {too_many}")
    return ConfigError(f"no permission to subscribe to {subject!r}; allow subscribe to {to_allow(subject)!r}")

"""Creates the consumers through which streams are read."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Any

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable

from ..connection.socket_connection import SocketConnection
from ..subjects import CONSUMER_PREFIX
from .answers import NO_STREAM, TOO_MANY_CONSUMERS, ApiError, ApiForbidden, ConsumerInfo, StreamInfo
from .client import JetStream
from .request_retry import BACKOFF

CONSUMER_KEPT = 30.0  #: seconds without a request after which the server deletes our consumers, if the stream allows
#: Seconds of each attempt to create a consumer.
_ATTEMPTS = Backoff(3.0, 60.0)
_LEAST = 0.05
_DELETE = 5.0  #: seconds


def create_consumer(api: JetStream, stream: str, deliver: dict[str, Any], kept: float) -> ConsumerInfo:
    """Create a consumer without acknowledgements.

    One server alone keeps it, which is cheap. A cluster may choose one that has ended, and keep to that for this name:
    so each attempt has a name of its own, and from the second on as many replicas as the stream has. A stream at its
    limit of consumers is asked again, because one of them may end.

    :param deliver: part of the configuration: what the consumer delivers
    :param kept: seconds without a request after which the server may delete it
    :raises ConfigError: the server does not allow it
    :raises Unavailable: no answer within the time limit of ``api``
    """
    until, limits, full, replicas = time.monotonic() + api.timeout, _ATTEMPTS.delays(), BACKOFF.delays(), 1
    refusal: ApiError | None = None
    while True:
        name, body = new_consumer(stream, replicas, deliver, kept)
        left, limit = until - time.monotonic(), limits.next()
        try:
            limit = min(limit, max(left, _LEAST))
            return ConsumerInfo.of(api.request(f"CONSUMER.CREATE.{stream}.{name}", body, timeout=limit))
        except ApiError as e:
            delay = full.next()
            if e.code != TOO_MANY_CONSUMERS or delay > left:
                raise _consumer_error(stream, e, api.timeout) from e
            refusal = e
            time.sleep(delay)
            continue
        except Unavailable as e:
            if left <= limit and refusal is not None:  # an earlier refusal tells more than silence now
                raise _consumer_error(stream, refusal, api.timeout) from e
            if left <= limit:
                raise Unavailable(f"stream {stream!r} gives no consumer within {api.timeout:g} s: {e}") from e
        replicas = 0  # that of the stream


def new_consumer(stream: str, replicas: int, deliver: dict[str, Any], kept: float) -> tuple[str, dict[str, Any]]:
    """A name for a consumer of ours, and the request that creates it; 0 ``replicas`` = as many as the stream has."""
    name = f"{CONSUMER_PREFIX}{secrets.token_hex(11)}"
    common = {"name": name, "ack_policy": "none", "num_replicas": replicas, "mem_storage": True}
    return name, {"stream_name": stream, "config": {**common, "inactive_threshold": int(kept * 1e9), **deliver}}


def delete_soon(connection: SocketConnection, stream: str, consumer: str) -> None:
    """Delete a consumer of ours without waiting. Never raises: if it fails, the server deletes the idle consumer."""
    with contextlib.suppress(MamaError):
        number, reply = connection.answers.expect(lambda _: None)
        connection.answers.forget(number)
        connection.publish(f"{connection.api_prefix}CONSUMER.DELETE.{stream}.{consumer}", b"", reply)


def probe(api: JetStream, stream: StreamInfo, where: dict[str, Any]) -> ConsumerInfo:
    """Create a consumer that begins at ``where``, delete it again, and return its initial state."""
    info = create_consumer(api, stream.name, where, stream.idle_limit(_DELETE))
    with contextlib.suppress(MamaError):  # the server deletes it after a while
        api.request(f"CONSUMER.DELETE.{stream.name}.{info.name}", timeout=1.0)
    return info


def most_consumers(api: JetStream, info: StreamInfo) -> tuple[int, str] | None:
    """The number of our consumers that a stream takes beside those of others, at least one, and the reason; None =
    any number. Earlier ones of ours do not count: they end."""
    allowed, stream = info.limit("max_consumers"), info.name
    if allowed is None:
        return None
    others = _others(api, stream)
    has = f", and has {', '.join(others[:5])}" if others else ""
    return max(1, allowed - len(others)), f"stream {stream!r} takes {allowed} consumers (max_consumers){has}"


def _others(api: JetStream, stream: str) -> list[str]:
    """Consumers of others; none where the permissions hide them."""
    names = api.listed(f"CONSUMER.NAMES.{stream}", "consumers")
    try:
        return [name for name in names if not name.startswith(CONSUMER_PREFIX)]
    except ApiForbidden:
        return []


def _consumer_error(stream: str, error: ApiError, waited: float) -> ConfigError:
    if error.code == TOO_MANY_CONSUMERS:
        return ConfigError(
            f"stream {stream!r}, or its account, has had as many consumers as it may for {waited:g} s (max_consumers): "
            "read with fewer tasks (option minPartitions), end other readers, or raise the limit"
        )
    if error.code == NO_STREAM:
        return no_stream_any_more(stream)
    return ConfigError(f"stream {stream!r} cannot be read: {error}")


def no_stream_any_more(stream: str) -> ConfigError:
    return ConfigError(f"there is no stream {stream!r} any more")

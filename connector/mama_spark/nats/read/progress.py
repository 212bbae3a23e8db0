"""Shows how far a query has come by a durable consumer, for ``nats consumer info`` and tools that watch lag."""

from __future__ import annotations

import contextlib
from typing import Any

from mama_spark.contracts.errors import ConfigError, Unavailable

from ..jetstream.answers import NO_CONSUMER, ApiError, ConsumerInfo
from ..jetstream.client import JetStream
from ..subjects import PROGRESS_METADATA, shows_progress

_RESET_TRY = 2.0  #: seconds; a server older than 2.14 does not answer the request


def show_progress(api: JetStream, stream: str, consumer: str, following: int, filters: list[str]) -> None:
    """Show that everything below ``following`` was read, as the floor of acknowledgements of the consumer; a reset
    moves it (NATS ADR-60). It is created if missing and delivers nothing: nobody reads through it, and nothing depends
    on it.
    """
    require_name(consumer, "a consumer")
    what = f"{stream}.{consumer}"
    answer = api.find(f"CONSUMER.INFO.{what}", None, NO_CONSUMER)
    if answer is not None:
        there = ConsumerInfo.of(answer)
        if not shows_progress(there.config):
            raise ConfigError(f"consumer {consumer!r} of stream {stream!r} is somebody else's: choose another name")
        if sorted(there.filters) == filters:
            with contextlib.suppress(ApiError, Unavailable):
                api.request(f"CONSUMER.RESET.{what}", {"seq": following}, timeout=min(_RESET_TRY, api.timeout))
                return
        api.request(f"CONSUMER.DELETE.{what}")
    made: dict[str, Any] = {
        "durable_name": consumer,
        "name": consumer,
        "description": "how far a query of mama-spark has come",
        "ack_policy": "all",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": following,
        "metadata": PROGRESS_METADATA,
    }
    if filters:
        made["filter_subjects"] = filters
    api.request(f"CONSUMER.CREATE.{what}", {"stream_name": stream, "config": made})


def require_name(name: str, of: str) -> None:
    """:raises ConfigError: it is no name of a stream or consumer"""
    if not name or any(c in name for c in " .*>/\\\t\r\n\0"):
        raise ConfigError(f"{name!r} is no name of {of}")

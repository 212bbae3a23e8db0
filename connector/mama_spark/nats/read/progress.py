"""Shows the progress of a query at the server, as the acknowledgement floor of a durable consumer.

For ``nats consumer info`` and tools that watch lag. Nobody reads through this consumer, and nothing depends on it.
Its position is moved by a reset (NATS ADR-60)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mama_spark.contracts.errors import ConfigError, Unavailable

from ..jetstream.api import NO_CONSUMER, ApiError, BlockingJetStreamClient
from ..subjects import PROGRESS_METADATA

_RESET_TRY = 2.0  #: seconds; a server older than 2.14 does not answer the request


def show(api: BlockingJetStreamClient, stream: str, consumer: str, following: int, filters: Sequence[str]) -> None:
    """Show that everything below the sequence ``following`` was read.

    :raises ConfigError: the server refuses the consumer
    :raises Unavailable: no answer
    """
    what = f"{stream}.{consumer}"
    try:
        found = api.request(f"CONSUMER.INFO.{what}")
    except ApiError as e:
        if e.code != NO_CONSUMER:
            raise
        _create(api, stream, consumer, following, filters)
        return
    config = found["config"]
    if not PROGRESS_METADATA.items() <= (config.get("metadata") or {}).items():
        raise ConfigError(f"consumer {consumer!r} of stream {stream!r} is somebody else's: choose another name")
    if _filters(config) != sorted(filters):
        _replace(api, stream, consumer, following, filters)
        return
    try:
        api.request(f"CONSUMER.RESET.{what}", {"seq": following}, timeout=min(_RESET_TRY, api.timeout))
    except (ApiError, Unavailable):
        _replace(api, stream, consumer, following, filters)


def _replace(api: BlockingJetStreamClient, stream: str, consumer: str, following: int, filters: Sequence[str]) -> None:
    api.request(f"CONSUMER.DELETE.{stream}.{consumer}")
    _create(api, stream, consumer, following, filters)


def _create(api: BlockingJetStreamClient, stream: str, consumer: str, following: int, filters: Sequence[str]) -> None:
    config: dict[str, Any] = {
        "durable_name": consumer,
        "name": consumer,
        "description": "how far a query of mama-spark has come",
        "ack_policy": "all",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": following,
        "metadata": PROGRESS_METADATA,
    }
    if filters:
        config["filter_subjects"] = sorted(filters)
    api.request(f"CONSUMER.CREATE.{stream}.{consumer}", {"stream_name": stream, "config": config})


def _filters(config: dict[str, Any]) -> list[str]:
    one = config.get("filter_subject")
    return sorted(config.get("filter_subjects") or ([one] if one else []))

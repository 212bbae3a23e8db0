"""Streams with their octets, limits and consumers, from the lists of the JetStream API."""

from __future__ import annotations

from typing import Any

from mama_spark.contracts.record_log import LogStatus, ReaderStatus

from ..jetstream.api import ApiError, JetStreamClient

#: Names of streams that keep buckets of values and objects.
_BUCKETS = ("KV_", "OBJ_")


async def log_statuses(api: JetStreamClient) -> list[LogStatus]:
    """See :class:`~mama_spark.contracts.record_log.StatusReporter`. A stream that is deleted meanwhile is left out."""
    found = []
    async for info in api.pages("STREAM.LIST", "streams"):
        config, state = info["config"], info["state"]
        name: str = config["name"]
        if name.startswith(_BUCKETS):
            continue
        readers: list[ReaderStatus] = []
        if state.get("consumer_count"):
            try:
                readers = [_reader(one) async for one in api.pages(f"CONSUMER.LIST.{name}", "consumers")]
            except ApiError:
                continue
        found.append(_status(config, state, tuple(readers)))
    return sorted(found, key=lambda status: status.name)


async def stream_configs(api: JetStreamClient) -> list[dict[str, Any]]:
    """Of all streams that are no buckets, by name.

    :raises ApiForbidden: the permissions do not allow the request
    """
    found = [info["config"] async for info in api.pages("STREAM.LIST", "streams")]
    return sorted((one for one in found if not one["name"].startswith(_BUCKETS)), key=lambda one: str(one["name"]))


def _status(config: dict[str, Any], state: dict[str, Any], readers: tuple[ReaderStatus, ...]) -> LogStatus:
    def limit(name: str) -> int | None:
        number = int(config.get(name, -1))
        return number if number > 0 else None

    return LogStatus(
        config["name"], int(state["last_seq"]), int(state["messages"]), int(state["bytes"]),
        limit("max_msgs"), limit("max_bytes"), readers,
    )  # fmt: skip


def _reader(info: dict[str, Any]) -> ReaderStatus:
    return ReaderStatus(info["name"], int(info.get("num_pending", 0)), int(info.get("num_ack_pending", 0)))

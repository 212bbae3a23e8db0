"""What the server's streams say about where messages go: looked up once, remembered on the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import nats.errors
import orjson

from mama_spark.errors import ConfigError, Unavailable

from ..connection.connection import Connection
from ..settings import NatsSettings
from ..subjects import Filters

API = "$JS.API."
#: Topics asked about one by one before the whole list of streams is fetched instead.
_SINGLE_LOOKUPS = 8
_NOT_FOUND = 10059
#: Also while the files of a deleted stream of the same name are being removed.
_NOT_MADE = 10049


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What matters to a publisher about one stream."""

    name: str
    subjects: tuple[str, ...]
    no_ack: bool
    interest: bool
    consumers: int
    batched: bool  #: fast ingest is allowed
    duplicate_window: float  #: seconds
    max_message: int  #: -1 = no limit of its own
    replicas: int

    @classmethod
    def of(cls, info: dict[str, Any]) -> StreamInfo:
        """From an answer of the JetStream API."""
        config, state = info["config"], info.get("state", {})
        return cls(
            config["name"],
            tuple(config.get("subjects") or ()),
            bool(config.get("no_ack")),
            config.get("retention") == "interest",
            int(state.get("consumer_count", 0)),
            bool(config.get("allow_batched")),
            int(config.get("duplicate_window", 0)) / 1e9,
            int(config.get("max_msg_size", -1)),
            int(config.get("num_replicas", 1)),
        )


class StreamCache:
    """Streams of one account, as far as they have been asked for."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamInfo] = {}
        self.filters = Filters()
        self.unrouted: set[str] = set()
        self.complete = False  #: all streams are known
        self.info_denied: set[str] = set()  #: streams that permissions forbid to ask for
        self.lookup_denied = False  #: permissions forbid to ask for anything, or for what takes a topic

    def add(self, stream: StreamInfo) -> None:
        self.streams[stream.name] = stream
        for subject in stream.subjects:
            self.filters.add(subject, stream.name)

    def unknown(self, topics: list[str]) -> list[str]:
        """Topics about which nothing is known yet."""
        return [t for t in topics if t not in self.unrouted and self.filters.owner(t) is None]


async def _ask(connection: Connection, what: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any] | None:
    """Asked twice, if need be: what a cluster is asked while it chooses a leader is never answered."""
    payload = orjson.dumps(body) if body is not None else b""
    try:
        with contextlib.suppress(Unavailable):
            return await connection.ask(API + what, payload, timeout)
        return await connection.ask(API + what, payload, timeout)
    except nats.errors.NoRespondersError:
        raise ConfigError("JetStream is not enabled on the server, or not for this account") from None


async def check_jetstream(connection: Connection, directory: StreamCache, timeout: float) -> None:
    """:raises ConfigError: JetStream is off for the server or the account"""
    answer = await _ask(connection, "INFO", None, timeout)
    if answer is None:
        directory.lookup_denied = True
    elif "error" in answer:
        error = answer["error"]
        if error.get("err_code") in (10039, 10076):
            raise ConfigError(f"JetStream is off: {error.get('description')}")
        raise Unavailable(f"JetStream does not answer properly: {error.get('description')}")


async def stream_info(connection: Connection, directory: StreamCache, name: str, timeout: float) -> StreamInfo | None:
    """The stream of this name, from now on in the directory; None if there is none or the permissions hide it.

    :raises Unavailable: the server cannot say now
    """
    answer = await _ask(connection, f"STREAM.INFO.{name}", None, timeout)
    if answer is None:
        directory.info_denied.add(name)
        return None
    if "error" in answer:
        if answer["error"].get("err_code") == _NOT_FOUND:
            return None
        raise Unavailable(f"stream {name!r}: {answer['error'].get('description')}")
    stream = StreamInfo.of(answer)
    directory.add(stream)
    return stream


async def names(connection: Connection, timeout: float, subject: str | None = None) -> list[str] | None:
    """Names of streams, of all or of those that take ``subject``; None if the permissions forbid to ask."""
    found: list[str] = []
    while True:
        body: dict[str, Any] = {"offset": len(found)}
        if subject is not None:
            body["subject"] = subject
        answer = await _ask(connection, "STREAM.NAMES", body, timeout)
        if answer is None:
            return None
        if "error" in answer:
            raise Unavailable(f"list of streams: {answer['error'].get('description')}")
        page = answer.get("streams") or []
        found += page
        if not page or len(found) >= int(answer.get("total", 0)):
            return found


async def create(connection: Connection, name: str, subjects: list[str], settings: NatsSettings) -> StreamInfo:
    """Make a stream for a publisher with these settings; asked again while the server still removes the files of one
    of this name that was deleted.

    :raises ConfigError: the server refuses it
    """
    config = {
        "name": name,
        "subjects": subjects,
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": int(max(2 * settings.retry_deadline, 0.1) * 1e9),
        "allow_batched": True,
    }
    until = time.monotonic() + settings.connect_timeout
    while True:
        answer = await _ask(connection, f"STREAM.CREATE.{name}", config, settings.connect_timeout)
        if (answer or {}).get("error", {}).get("err_code") != _NOT_MADE or time.monotonic() > until:
            break
        await asyncio.sleep(0.1)
    if answer is None:
        raise ConfigError(f"no permission to create the stream {name!r}")
    if "error" in answer:
        raise ConfigError(f"cannot create the stream {name!r}: {answer['error'].get('description')}")
    return StreamInfo.of(answer)


async def look_up(connection: Connection, directory: StreamCache, topics: list[str], timeout: float) -> None:
    """Find the streams of ``topics``: a few questions, however many topics there are."""
    for _ in range(_SINGLE_LOOKUPS):
        topics = directory.unknown(topics)
        if not topics or directory.lookup_denied:
            return
        if directory.complete:
            break
        found = await names(connection, timeout, topics[0])
        if found is None:
            directory.lookup_denied = True
            return
        if not found:
            directory.unrouted.add(topics[0])
        for name in found:
            await stream_info(connection, directory, name, timeout)
            if directory.filters.owner(topics[0]) is None:
                directory.filters.add(topics[0], name)  # the server knows better than the filters (transforms)
    topics = directory.unknown(topics)
    if topics and not directory.complete:
        for name in await names(connection, timeout) or []:
            if name not in directory.streams:
                await stream_info(connection, directory, name, timeout)
        directory.complete = True
        topics = directory.unknown(topics)
    directory.unrouted.update(topics)


def derive_name(topic: str) -> tuple[str, str]:
    """Name and subject of a stream made for ``topic``: its first token and everything below."""
    first, dot, _ = topic.partition(".")
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in first).upper() or "MAMA"
    return name, f"{first}.>" if dot else first

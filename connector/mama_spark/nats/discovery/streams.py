"""Finds the streams of discovery, checks their configuration, and creates missing ones for announcing processes."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from mama_spark.contracts.errors import ConfigError

from ..jetstream.api import NO_STREAM, ApiError
from ..jetstream.stream_client import StreamClient
from ..protocol.direct_get import micros
from .layout import NEEDED, DiscoveryLayout
from .offsets import ABSENT, StreamCreationTimes

LOG = logging.getLogger("mama_spark.nats.discovery")

_NAME_TAKEN, _OVERLAP = 10058, 10065


@dataclass(frozen=True, slots=True)
class DiscoveryStreams:
    """The state of the streams of discovery.

    :ivar generations: creation times of the existing streams
    :ivar last: sequence of the newest record in the stream of sources
    :ivar now: microseconds since the epoch, by the server's clock
    """

    generations: StreamCreationTimes
    last: int
    now: int

    @property
    def clock_offset(self) -> float:
        """Seconds to add to :func:`time.monotonic` to get the server's time; valid right after the request."""
        return self.now / 1e6 - time.monotonic()

    @property
    def complete(self) -> bool:
        """Whether the streams of sources and of events exist."""
        return bool(self.generations.sources and self.generations.events)


def check_version(version: object) -> None:
    """:raises ConfigError: a server of this version cannot keep discovery"""
    found = re.search(r"(\d+)\.(\d+)\.\d+", str(version))
    if found is None or (int(found[1]), int(found[2])) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise ConfigError(f"discovery needs nats-server {needed} (messages with a TTL), this is {version}")


def find_streams(stream_client: StreamClient, layout: DiscoveryLayout, *, check: bool = False) -> DiscoveryStreams:
    """Find the existing streams; creates none.

    :param check: check their settings, too
    :raises ConfigError: the settings of a stream are unusable; the text names both
    """
    found = {c["name"]: _info(stream_client, c["name"]) for c in layout.streams()}
    if check:
        _check_all(layout, found)
    return _streams(layout, found)


def _streams(layout: DiscoveryLayout, found: dict[str, dict[str, Any] | None]) -> DiscoveryStreams:
    there = {name: info for name, info in found.items() if info is not None}
    created = {name: str(info["created"]) for name, info in there.items()}
    advisories = "" if layout.advisories is None else created.get(layout.advisories, ABSENT)
    generations = StreamCreationTimes(created.get(layout.sources, ""), created.get(layout.events, ""), advisories)
    last = int(there[layout.sources]["state"]["last_seq"]) if layout.sources in there else 0
    now = [micros(info.get("ts", "")) for info in there.values()]
    # Time of day: stamps an image where no stream is there to tell the server's time.
    return DiscoveryStreams(generations, last, now[-1] if now else time.time_ns() // 1000)


def ensure_streams(stream_client: StreamClient, layout: DiscoveryLayout) -> DiscoveryStreams:
    """Find the streams, create missing ones, and check their settings.

    :raises ConfigError: unusable settings, or a missing permission; the text names stream and setting, or permission
    :raises Unavailable: no answer
    """
    found: dict[str, dict[str, Any] | None] = {}
    for config in layout.streams():
        name = config["name"]
        info = _info(stream_client, name)
        if info is None:
            if name == layout.sources:
                config = {**config, "first_seq": _sourced_until(stream_client, layout) + 1}
            _create(stream_client, config)
            info = _info(stream_client, name)
        if info is None:
            raise ConfigError(f"the stream {name!r} was deleted while it was made")
        found[name] = info
    _check_all(layout, found)
    return _streams(layout, found)


def _info(stream_client: StreamClient, name: str) -> dict[str, Any] | None:
    return stream_client.request("STREAM.INFO", name, absent=NO_STREAM)


def _create(stream_client: StreamClient, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        stream_client.request("STREAM.CREATE", name, config)
    except ApiError as e:
        if e.code == _NAME_TAKEN:  # another process was first
            return
        if e.code != _OVERLAP:
            raise
        taken = ", ".join(config["subjects"])
        raise ConfigError(
            f"the stream {name!r} cannot be made: another stream takes {taken} already (name that one, by "
            "sourcesStream, eventsStream or advisoriesStream)"
        ) from e
    LOG.info("made the stream %s for discovery", name)


def _check_all(layout: DiscoveryLayout, found: dict[str, dict[str, Any] | None]) -> None:
    """:raises ConfigError: the settings of an existing stream are unusable"""
    for info in found.values():
        if info is not None:
            _check(layout, info)
    sources, events = found[layout.sources], found[layout.events]
    if sources is not None and events is not None:
        _check_sourcing(layout, sources, events)


def _check(layout: DiscoveryLayout, info: dict[str, Any]) -> None:
    name = info["config"]["name"]
    wrong, doubtful = layout.faults(info["config"])
    if wrong:
        raise ConfigError(f"the stream {name!r} cannot serve discovery: {'; '.join(wrong)}")
    for text in doubtful:
        LOG.warning("the stream %s: %s", name, text)


def _sourced(layout: DiscoveryLayout, events: dict[str, Any]) -> int:
    """The sequence of the stream of sources up to which the stream of events has sourced it."""
    return max(
        (int(s.get("seq", 0)) for s in events.get("sources") or () if s.get("name") == layout.sources), default=0
    )


def _sourced_until(stream_client: StreamClient, layout: DiscoveryLayout) -> int:
    info = _info(stream_client, layout.events)
    if info is None:
        return 0
    last = stream_client.leader_get(layout.events, f"{layout.topic}.source.>")
    return max(_sourced(layout, info), 0 if last is None else last.sourced)


def _check_sourcing(layout: DiscoveryLayout, sources: dict[str, Any], events: dict[str, Any]) -> None:
    """:raises ConfigError: the stream of sources was created again, with sequences below those already sourced"""
    seen = _sourced(layout, events)
    if int(sources["state"]["last_seq"]) < seen and sources["created"] > events["created"]:
        raise ConfigError(
            f"the stream {layout.sources!r} was made again and begins below number {seen}, up to which "
            f"{layout.events!r} has sourced it: the server would not source it. Delete {layout.events!r}, too, or make "
            f"{layout.sources!r} with first_seq={seen + 1}"
        )

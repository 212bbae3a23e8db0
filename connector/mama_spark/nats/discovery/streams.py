"""Finds the streams of discovery, checks their configuration, and creates missing ones for announcing processes."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, replace
from typing import Any

from mama_spark.contracts.errors import ConfigError, Unavailable

from ..jetstream.answers import NAME_TAKEN, OVERLAP, ApiError, StreamInfo
from ..jetstream.client import JetStream
from ..jetstream.streams import info_in
from ..protocol.direct_get import micros
from ..protocol.headers import TTL_SINCE
from .layout import DiscoveryLayout
from .offsets import ABSENT, DiscoveryOffset, StreamCreationTimes

LOG = logging.getLogger("mama_spark.nats.discovery")

_REFRESH = 30.0  #: seconds between checks that the streams are still the same
_MARK = 2.0  #: seconds to look for a mark before the streams are looked up instead


@dataclass(frozen=True, slots=True)
class DiscoveryStreams:
    """The state of the streams of discovery.

    :ivar generations: creation times of the existing streams
    :ivar last: sequence of the newest record in the stream of sources
    :ivar last_event: sequence of the newest record in the stream of events
    :ivar advisories: sequences of the first and the newest record in the stream of advisories; zeros without it
    :ivar now: microseconds since the epoch, by the clock of the leader of the stream of events: marks have its time
    """

    generations: StreamCreationTimes
    last: int
    last_event: int
    advisories: tuple[int, int]
    now: int

    @property
    def clock_offset(self) -> float:
        """Seconds to add to :func:`time.monotonic` to get the server's time; valid right after the request."""
        return self.now / 1e6 - time.monotonic()

    @property
    def complete(self) -> bool:
        return bool(self.generations.sources and self.generations.events)


def check_version(version: object) -> None:
    """Check the server's version. ConfigError: it cannot keep discovery."""
    found = re.search(r"(\d+)\.(\d+)\.\d+", str(version))
    if found is None or (int(found[1]), int(found[2])) < TTL_SINCE:
        needed = ".".join(map(str, TTL_SINCE))
        raise ConfigError(f"discovery needs nats-server {needed} (messages with a TTL), this is {version}")


def find_streams(api: JetStream, layout: DiscoveryLayout, *, check: bool = False) -> DiscoveryStreams:
    """Find the existing streams; creates none. With ``check``, also check their settings. ConfigError: these are
    unusable; the text names stream and setting."""
    names = [config["name"] for config in layout.streams()]
    answers = api.request_all([(f"STREAM.INFO.{name}", None) for name in names])
    found = {name: info_in(name, answer) for name, answer in zip(names, answers, strict=True)}
    if check:
        _check_all(layout, found)
    return _streams(layout, found)


def _streams(layout: DiscoveryLayout, found: dict[str, StreamInfo | None]) -> DiscoveryStreams:
    there = {name: info for name, info in found.items() if info is not None}
    created = {name: info.created for name, info in there.items()}
    advisories = "" if layout.advisories is None else created.get(layout.advisories, ABSENT)
    generations = StreamCreationTimes(created.get(layout.sources, ""), created.get(layout.events, ""), advisories)
    last, last_event = (there[name].last if name in there else 0 for name in (layout.sources, layout.events))
    told = there.get(layout.advisories or "")
    kept = (0, 0) if told is None else (told.first, told.last)
    now = [micros(info.now) for info in (found[layout.events], *there.values()) if info is not None]
    # Time of day: stamps an image where no stream is there to tell the server's time.
    return DiscoveryStreams(generations, last, last_event, kept, now[0] if now else time.time_ns() // 1000)


def ensure_streams(api: JetStream, layout: DiscoveryLayout) -> DiscoveryStreams:
    """Find the streams, create missing ones, and check their settings. ConfigError: unusable settings, or a missing
    permission; the text names stream and setting, or permission. Unavailable: no answer."""
    found: dict[str, StreamInfo | None] = {}
    for config in layout.streams():
        name = config["name"]
        info = api.stream(name)
        if info is None:
            if name == layout.sources:
                config = {**config, "first_seq": _sourced_until(api, layout) + 1}
            _create(api, config)
            info = api.stream(name)
        if info is None:
            raise ConfigError(f"the stream {name!r} was deleted while it was made")
        found[name] = info
    _check_all(layout, found)
    return _streams(layout, found)


def _create(api: JetStream, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        api.request(f"STREAM.CREATE.{name}", config)
    except ApiError as e:
        if e.code == NAME_TAKEN:  # another process was first
            return
        if e.code != OVERLAP:
            raise
        taken = ", ".join(config["subjects"])
        raise ConfigError(
            f"the stream {name!r} cannot be made: another stream takes {taken} already (name that one, by "
            "sourcesStream, eventsStream or advisoriesStream)"
        ) from e
    LOG.info("made the stream %s for discovery", name)


def _check_all(layout: DiscoveryLayout, found: dict[str, StreamInfo | None]) -> None:
    """Check the settings of the existing streams. ConfigError: one has unusable ones."""
    for info in found.values():
        if info is not None:
            _check(layout, info)
    sources, events = found[layout.sources], found[layout.events]
    if sources is not None and events is not None:
        _check_sourcing(layout, sources, events)


def _check(layout: DiscoveryLayout, info: StreamInfo) -> None:
    wrong, doubtful = layout.faults(info.config)
    if wrong:
        raise ConfigError(f"the stream {info.name!r} cannot serve discovery: {'; '.join(wrong)}")
    for text in doubtful:
        LOG.warning("the stream %s: %s", info.name, text)


def _sourced_until(api: JetStream, layout: DiscoveryLayout) -> int:
    info = api.stream(layout.events)
    if info is None:
        return 0
    last = api.message(layout.events, last_by_subj=f"{layout.topic}.source.>")
    return max(info.sourced.get(layout.sources, 0), 0 if last is None else last.sourced)


def _check_sourcing(layout: DiscoveryLayout, sources: StreamInfo, events: StreamInfo) -> None:
    """Check the sequences. ConfigError: the stream of sources was made again, below sequences already sourced."""
    seen = events.sourced.get(layout.sources, 0)
    if sources.last < seen and sources.created > events.created:
        raise ConfigError(
            f"the stream {layout.sources!r} was made again and begins below number {seen}, up to which "
            f"{layout.events!r} has sourced it: the server would not source it. Delete {layout.events!r}, too, or make "
            f"{layout.sources!r} with first_seq={seen + 1}"
        )


class StreamWatch:
    """The streams as one reader sees them, and the marks that reveal losses."""

    def __init__(self, api: JetStream, layout: DiscoveryLayout) -> None:
        self.api, self.layout = api, layout
        self.streams = DiscoveryStreams(StreamCreationTimes("", "", ""), 0, 0, (0, 0), 0)
        self._refreshed = float("-inf")
        self._warnings: set[str] = set()

    @property
    def advisories(self) -> str | None:
        """The stream of advisories, if it is requested and exists."""
        return None if self.streams.generations.advisories in ("", ABSENT) else self.layout.advisories

    @property
    def now(self) -> float:
        """Seconds since the epoch, by the server's clock; valid after :meth:`refresh`."""
        return self.streams.now / 1e6 + time.monotonic() - self._refreshed

    def advisory_time(self, sequence: int) -> str:
        """The time of an advisory; empty if it is not there."""
        found = self.api.get(self.advisories, seq=sequence) if self.advisories and sequence else None
        return "" if found is None else found.time

    def last_advisory(self) -> int:
        """Sequence of the newest advisory at the leader: a replica may lack it."""
        info = None if self.advisories is None else self.api.stream(self.advisories)
        return 0 if info is None else info.last

    def refresh(self) -> DiscoveryStreams:
        self.streams = find_streams(self.api, self.layout)
        if not self.streams.complete:
            self._warn_once(
                f"there are no streams {self.layout.sources} and {self.layout.events} yet: nothing is announced here. "
                "They are made for the first source that is announced, or by mama sources --create-streams"
            )
        self._refreshed = time.monotonic()
        return self.streams

    def warn_without_advisories(self) -> None:
        if self.streams.complete and self.streams.generations.advisories == ABSENT:
            self._warn_once(
                f"there is no stream {self.layout.advisories}: readers that come and go are not reported (make it by "
                "mama sources --create-streams, name the one that keeps the advisories by advisoriesStream, or set "
                "advisories=false)"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            LOG.warning("%s", text)

    def look(self, here: DiscoveryOffset) -> tuple[StreamCreationTimes, tuple[int, str] | None]:
        """Creation times of the streams, requested only if they may differ from those of ``here``; and sequence and
        time of the record that is now in the place of its mark, None if there is none, or if the mark has no time."""
        if time.monotonic() - self._refreshed < _REFRESH and self.streams.generations == here.generations:
            try:
                if self.mark_exists(here.mark, timeout=_MARK):
                    return here.generations, here.mark
            except Unavailable:
                pass  # the stream may be gone
        now = self.refresh().generations
        if now.advisories == ABSENT and here.generations.advisories:  # until it exists again
            now = replace(now, advisories=here.generations.advisories)
        if not (now.events and here.mark[0] and here.mark[1]):
            return now, None
        stream, at = self.layout.events, here.mark[0]
        found = self.api.get(stream, seq=at) or self.api.message(stream, seq=at)  # a replica may lack it
        return now, None if found is None else (found.sequence, found.time)

    # --- marks ---------------------------------------------------------------------------------------------------

    def write_mark(self) -> tuple[int, str]:
        """Store a mark at the end of the stream of events; returns its sequence and time."""
        stored = self.api.publish(self.layout.mark_subject, b"", {})

        def find(_: float) -> tuple[int, str]:  # a new leader may not have applied it yet
            mark = self.api.message(self.layout.events, last_by_subj=self.layout.mark_subject)
            if mark is None or mark.sequence < stored:
                why = "its limits are too small, or its leader has changed"
                raise Unavailable(f"the stream {self.layout.events!r} does not have what it stored at {stored}: {why}")
            return mark.sequence, mark.time

        return self.api.retry("the request for a new mark", find)

    def mark_exists(self, mark: tuple[int, str], timeout: float | None = None) -> bool:
        found = self.api.get(self.layout.events, timeout, seq=mark[0]) if mark[0] else None
        return found is not None and found.time == mark[1]

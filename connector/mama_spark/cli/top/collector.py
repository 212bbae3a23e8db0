"""Asks the middleware for what the live view shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ...console.arguments import completed
from ...console.discovery_follow import TAKES, DiscoveryFollower
from ...contracts.errors import ConfigError, MamaError, Unavailable
from ...contracts.record_log import RecordLogBridge
from ...mama.discovery.discovery_rows import DiscoveryRow
from ...options import DiscoveryOptions, command, redact_url
from ...options.urls import split_stream
from ...publishing.window.reconnecting import ReconnectingBridge
from ...registry import log_bridge
from .model import LiveModel

_USE = command("top", *TAKES, "advisories")
#: Seconds between two looks at all sources, beside their changes.
_IMAGE_INTERVAL = 30.0
#: ``waitTimeout`` where it is not given: who looks at a screen wants to see soon that nobody answers.
_WAIT = "3s"


class Collector:
    """Feeds a model; close it after use. All calls from one thread.

    :param given: options as of ``mamadiscovery``
    :raises ConfigError: one is wrong
    :raises Unavailable: the middleware cannot be reached
    :ivar name: the middleware's name, for people
    :ivar without_discovery: why there are no sources, publishers and events; empty = there are
    :ivar without_streams: why there are no streams and readers; empty = there are
    """

    def __init__(self, given: Mapping[str, str], model: LiveModel) -> None:
        self.model = model
        if "waittimeout" not in {name.lower() for name in given}:
            given = {**given, "waitTimeout": _WAIT}
        full = completed(given, DiscoveryOptions)
        o = DiscoveryOptions.parse(full.options, _USE, full.shared)
        self.name = ",".join(map(redact_url, o.url))
        if o.recorded is not None:  # the URL names the recorder's log
            servers, stream = split_stream(o.url)
            o = replace(o, url=servers, stream=o.stream or stream)
        self._logs = ReconnectingBridge[RecordLogBridge](lambda: log_bridge(o, o.wait_timeout), 0.0)
        self._follower: DiscoveryFollower | None = None
        self._changes: Iterator[list[DiscoveryRow]] | None = None
        self.without_discovery = self.without_streams = ""
        try:
            self._follower = DiscoveryFollower.of(given, _USE)
            self._follow()
        except Unavailable:
            raise
        except MamaError as e:  # without the streams of discovery, or the right to read them, there are still others
            self.without_discovery = str(e)

    def _follow(self) -> None:
        assert self._follower is not None
        at = self._follower.initial_offset("latest")  # before the image, so that nothing is between the two
        self.model.set_sources(self._follower.image())
        self._image_at = time.monotonic()
        self._changes = self._follower.changes(at, sleep=lambda _: None)

    def collect(self) -> None:
        """Ask for what is new.

        :raises Unavailable: nobody answers; try again
        """
        if self._follower is not None and not self.without_discovery:
            self._discover()
        if not self.without_streams:
            try:
                self.model.set_streams(self._logs.call(lambda logs: logs.statuses()), time.monotonic())
            except ConfigError as e:
                self.without_streams = str(e)

    def _discover(self) -> None:
        assert self._follower is not None
        if self._changes is None:
            self._follow()
        assert self._changes is not None
        try:
            for rows in self._changes:
                self.model.add_changes(rows, time.monotonic())
                if not rows:
                    break
            if time.monotonic() >= self._image_at + _IMAGE_INTERVAL:
                self.model.set_sources(self._follower.image())
                self._image_at = time.monotonic()
        except MamaError:
            self._changes = None  # the generator has ended with it
            raise

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
        self._logs.close()


def watch(
    collector: Collector, interval: float, stopped: Callable[[float], bool], show: Callable[[str], object]
) -> None:
    """Collect until ``stopped``, which waits the given seconds; ``show`` gets after each round what is wrong, or
    ``""``."""
    while True:
        try:
            collector.collect()
            missing = [collector.without_discovery, collector.without_streams]
            show("; ".join(text for text in missing if text))
        except MamaError as e:
            show(str(e))
        if stopped(interval):
            return

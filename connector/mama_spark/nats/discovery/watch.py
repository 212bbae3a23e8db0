"""The streams of discovery as one reader sees them: which there are, and the marks that show what they have lost."""

from __future__ import annotations

import time
from dataclasses import replace

from mama_spark.contracts.errors import Unavailable

from ..jetstream.client import JetStream
from .layout import DiscoveryLayout
from .offsets import ABSENT, DiscoveryOffset, StreamCreationTimes
from .streams import LOG, DiscoveryStreams, find_streams

_REFRESH = 30.0  #: seconds between checks that the streams are still the same
_MARK = 2.0  #: seconds to look for a mark before the streams are looked up instead


class StreamWatch:
    """:ivar streams: as they were last looked up"""

    def __init__(self, api: JetStream, layout: DiscoveryLayout) -> None:
        self.api, self.layout = api, layout
        self.streams = DiscoveryStreams(StreamCreationTimes("", "", ""), 0, 0)
        self._refreshed = float("-inf")
        self._warnings: set[str] = set()  #: that were logged

    @property
    def advisories(self) -> str | None:
        """The stream of advisories, if it is requested and exists."""
        return None if self.streams.generations.advisories in ("", ABSENT) else self.layout.advisories

    def last_advisory(self) -> int:
        return 0 if self.advisories is None else self.api.first_and_last(self.advisories)[1]

    def refresh(self) -> DiscoveryStreams:
        """Look up the existing streams."""
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

    def generations(self, here: DiscoveryOffset) -> StreamCreationTimes:
        """Creation times of the streams; requested only if they may differ from those of ``here``."""
        if time.monotonic() - self._refreshed < _REFRESH and self.streams.generations == here.generations:
            try:
                if self.mark_exists(here.mark, timeout=_MARK):
                    return here.generations
            except Unavailable:
                pass  # perhaps the stream is gone
        now = self.refresh().generations
        if now.advisories == ABSENT and here.generations.advisories:  # until it exists again
            now = replace(now, advisories=here.generations.advisories)
        return now

    # --- marks ---------------------------------------------------------------------------------------------------

    def write_mark(self) -> tuple[int, str]:
        """Store a mark at the end of the stream of events; its sequence and time."""
        self.api.publish(self.layout.mark_subject, b"", {})
        mark = self.api.message(self.layout.events, last_by_subj=self.layout.mark_subject)
        if mark is None:
            raise Unavailable(f"the stream {self.layout.events!r} lost a record at once: its limits are too small")
        return mark.sequence, mark.time

    def mark_exists(self, mark: tuple[int, str], timeout: float | None = None) -> bool:
        found = self.api.get(self.layout.events, timeout, seq=mark[0]) if mark[0] else None
        return found is not None and found.time == mark[1]

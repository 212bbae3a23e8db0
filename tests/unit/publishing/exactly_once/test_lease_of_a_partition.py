"""The lease of a partition: renewed while its attempt is open, released when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa
from mama_spark.contracts.batch_ledger import Marker, MarkerChanged
from mama_spark.contracts.record_log import Bounds
from mama_spark.publishing.exactly_once import protocol
from mama_spark.publishing.exactly_once.protocol import Attempt
from mama_spark.publishing.exactly_once.session import BatchSession, Rules
from mama_spark.testing.waiting import eventually

ME = Attempt("query", 7, "run", 3, "me", "query-7-", "one message a row")
KEY = ME.key("S", "task", ME.partition)


class Markers:
    """A ledger of one empty stream that takes all topics."""

    def __init__(self) -> None:
        self.kept: dict[str, Marker] = {}

    def open(self) -> None:
        pass

    def streams_of(self, topics: pa.Array) -> list[str | None]:
        return ["S"] * len(topics)

    def marker(self, key: str) -> Marker:
        return self.kept.get(key, Marker(0, b""))

    def markers_and_bounds(self, stream: str, keys: Sequence[str]) -> tuple[list[Marker], Bounds]:
        return [self.marker(key) for key in keys], self.bounds(stream)

    def set_marker(self, key: str, value: bytes, revision: int) -> int:
        if self.marker(key).revision != revision:
            raise MarkerChanged("another revision")
        self.kept[key] = Marker(revision + 1, value)
        return revision + 1

    def release_marker(self, key: str, value: bytes, revision: int) -> None:
        self.set_marker(key, value, revision)

    def bounds(self, stream: str) -> Bounds:
        return Bounds(1, 0, "2026")

    def close(self) -> None:
        pass

    @property
    def task(self) -> protocol.TaskMarker:
        found = protocol.task_marker(self.marker(KEY).value)
        assert found is not None
        return found


def test_an_attempt_renews_its_marker_while_it_is_open_and_releases_it_at_the_end() -> None:
    markers = Markers()
    with closing(BatchSession(markers, ME, Rules(lease=0.05))) as session:  # type: ignore[arg-type]
        session.open()
        session.begin(pa.array(["t"]))
        first = markers.task
        assert (first.owner, first.released) == ("me", False)
        eventually(lambda: markers.task.renewed > first.renewed, "the lease is renewed")
    assert markers.task.released
    assert markers.task.owner == "me"

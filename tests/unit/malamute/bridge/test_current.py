"""What is current in a stream of a broker that removes messages while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from mama_spark.contracts.record_log import Bounds, Records
from mama_spark.malamute.bridge.logs import MalamuteLog


class Busy(MalamuteLog):
    """Keeps the last message of each topic. Others write between its answers.

    :param changes: topics that are written before each of its next answers
    """

    def __init__(self, topics: str, changes: Sequence[str]) -> None:
        self._kept, self._last, self._changes = dict[str, int](), 0, iter(changes)
        self._write(topics)

    def _write(self, topics: str) -> None:
        for topic in topics:
            self._last += 1
            self._kept[topic] = self._last

    def _answer(self) -> None:
        self._write(next(self._changes, ""))

    def bounds(self) -> Bounds:
        self._answer()
        return Bounds(min(self._kept.values()), self._last, "a")

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        self._answer()
        return [(n, n) for n in range(after + 1, min(up_to, self._last) + 1) if n not in self._kept.values()]

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        self._answer()
        found = sorted((n, topic) for topic, n in self._kept.items() if after < n <= up_to)
        numbers = np.array([n for n, _ in found], np.int64)
        names = pa.array([topic for _, topic in found], pa.string())
        yield Records(numbers, numbers, names, names.cast(pa.binary()))


def test_a_topic_is_found_that_changes_between_two_answers() -> None:
    for place in range(8):
        for changes in ("a", "aa", "ba", "ab"):
            log = Busy("abc", [*[""] * place, *changes])
            found = [topic for some in log.current() for topic in some.topics.to_pylist()]
            assert set(found) == {"a", "b", "c"}, (place, changes)

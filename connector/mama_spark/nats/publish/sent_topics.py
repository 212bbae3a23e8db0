"""Topics of the latest sends: a permission violation names a subject, and no message. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import Int64s

_REMEMBERED = 128 * 1024  #: sends whose topics are kept


@dataclass(slots=True)
class _Run:
    first_token: int
    topics: pa.DictionaryArray


class SentTopics:
    """Runs of sends, oldest first. One thread adds, another one takes."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()

    def add(self, first_token: int, topics: pa.DictionaryArray) -> None:
        """One run of sends, with tokens from ``first_token`` on."""
        self._runs.append(_Run(first_token, topics))
        while len(self._runs) > 1 and self._runs[1].first_token < first_token - _REMEMBERED:
            self._runs.popleft()

    def take(self, subject: str, exact: bool) -> Int64s:
        """Tokens of the sends to ``subject``; each is returned once.

        :param exact: False: the server wrote the subject in lower case
        """
        found = []
        for run in list(self._runs):
            names = run.topics.dictionary.to_pylist()
            mine = [j for j, n in enumerate(names) if n is not None and (n if exact else n.lower()) == subject]
            if mine:
                rows = np.flatnonzero(np.isin(run.topics.indices.to_numpy(zero_copy_only=False), mine))
                found.append(rows + run.first_token)
                run.topics = _without_topics(run.topics, mine)
        return np.concatenate(found) if found else np.array([], np.int64)


def _without_topics(topics: pa.DictionaryArray, mine: list[int]) -> pa.DictionaryArray:
    """The same topics with some set to null: their sends are settled, and must be settled once."""
    indices = topics.indices.to_numpy(zero_copy_only=False)
    mask = pa.array(np.isin(indices, mine))
    return pa.DictionaryArray.from_arrays(
        pc.if_else(mask, pa.scalar(None, topics.indices.type), topics.indices), topics.dictionary
    )

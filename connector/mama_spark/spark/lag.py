"""How far a streaming query is behind the streams that it reads, from its progress."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def lag(of: Any) -> dict[str, int]:
    """Messages of each stream that a query had not read when its last micro-batch was planned::

        mama_spark.lag(query)                          # {"ORDERS": 1200}

        class Lag(StreamingQueryListener):             # after each micro-batch
            def onQueryProgress(self, event):
                print(mama_spark.lag(event.progress))

    All messages of a stream count, whether they match ``topics`` or not. Empty before the first progress, and for
    sources that are not ``mamasub``. Spark takes no metrics of its own from a Python source (``sources[].metrics`` is
    empty), so this is computed from the offsets that it reports.

    :param of: a streaming query, or its progress
    :raises TypeError: ``of`` is neither
    """
    progress = getattr(of, "lastProgress", of)
    if progress is None:
        return {}
    sources = progress.get("sources") if isinstance(progress, Mapping) else getattr(progress, "sources", None)
    if sources is None:
        raise TypeError(f"lag() takes a streaming query or its progress, and not {of!r}")
    found: dict[str, int] = {}
    for source in sources:
        for stream, behind in _behind(_offsets(source, "endOffset"), _offsets(source, "latestOffset")):
            found[stream] = found.get(stream, 0) + behind
    return found


def _behind(read: Mapping[str, Any], latest: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for stream, end in latest.items():
        if isinstance(end, Mapping) and {"next", "identity"} <= end.keys():
            at = read.get(stream) or {}
            same = at.get("identity") == end["identity"]  # else it is a new one, and nothing is read
            yield stream, max(0, int(end["next"]) - (int(at["next"]) if same else 1))


def _offsets(source: Any, name: str) -> Mapping[str, Any]:
    """An offset of a source: JSON, or what was parsed from it; empty if it has none."""
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}

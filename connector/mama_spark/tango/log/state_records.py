"""What the STATE records of a recorder hold: JSON, in parts that fit into a message. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

_VERSION = 1
_TOPICS_IN_PART = 4000  #: most topics in one record
_EMPTY: Mapping[str, Any] = {"devices": [], "hosts": {}, "owed": []}  #: in all but the first one


def state_parts(counters: Mapping[bytes, int], more: Mapping[str, Any]) -> Iterator[bytes]:
    """The contents of the records.

    :param counters: Tango topic -> counter of its last event
    :param more: what the first one holds besides
    """
    topics = list(counters.items())
    of = max(1, -(-len(topics) // _TOPICS_IN_PART))
    for number in range(of):
        part = topics[number * _TOPICS_IN_PART : (number + 1) * _TOPICS_IN_PART]
        named = {topic.decode("latin-1"): ctr for topic, ctr in part}
        state = {"v": _VERSION, "part": number, "of": of, "counters": named, **(_EMPTY if number else more)}
        yield orjson.dumps(state)


def newest_state(parts: Sequence[bytes]) -> tuple[dict[str, Any], int, int] | None:
    """The newest complete state among the STATE records of a recorder, and the indices of its first and last record;
    None if none is complete.

    :param parts: contents of the records, in order
    """
    open_parts: list[dict[str, Any]] = []
    newest: tuple[dict[str, Any], int, int] | None = None
    for at, data in enumerate(parts):
        try:
            part = orjson.loads(data)
            number, of, counters = int(part["part"]), int(part["of"]), dict(part["counters"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            open_parts = []
            continue
        if part.get("v") != _VERSION or number != len(open_parts):
            open_parts = []
        if number == len(open_parts):
            open_parts.append({**part, "counters": counters})
        if len(open_parts) == of:
            counters = {k: v for p in open_parts for k, v in p["counters"].items()}
            newest = {**open_parts[0], "counters": counters}, at - of + 1, at
            open_parts = []
    return newest

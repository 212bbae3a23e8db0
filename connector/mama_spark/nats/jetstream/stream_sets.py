"""Finds, makes and grows the members of stream sets (:mod:`..stream_set`), and says how the load is spread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from mama_spark.contracts.errors import ConfigError, Unavailable

from ..settings import NatsSettings
from ..stream_set import METADATA, StreamSet
from ..subjects import Filters
from .api import NO_STREAM, ApiError, ApiForbidden, JetStreamClient
from .streams import StreamCache, StreamInfo, advice_to_create, create

T = TypeVar("T")

#: Requests about members that are on their way at once.
AT_ONCE = 32


def time_limit(streams: StreamSet, connect_timeout: float) -> float:
    """Seconds for :func:`prepare_members` and :func:`describe_load`: each group of requests may take as long as one."""
    return (10 + 4 * streams.streams.count / AT_ONCE) * connect_timeout


async def prepare_members(
    api: JetStreamClient, cache: StreamCache, streams: StreamSet, settings: NatsSettings
) -> list[StreamInfo]:
    """The members, which are there afterwards; they are added to ``cache``.

    :raises ConfigError: one is missing, is another stream, or belongs to a set of another size
    """
    answers = await in_groups([partial(_info, api, name) for name in streams.streams.names])
    there = [(number, answer) for number, answer in enumerate(answers) if answer is not None]
    others = _require_set(streams, there, settings.grow_streams)
    missing = [number for number, answer in enumerate(answers) if answer is None]
    if missing and not settings.create_stream:
        names = ", ".join(streams.streams.name(number) for number in missing[:5])
        raise ConfigError(
            f"option streams={streams.streams}: {len(missing)} of {len(answers)} streams are not there: {names}; "
            f"{await advice_to_create(api, streams.streams.name(missing[0]))}"
        )
    for made in await in_groups([partial(_create, api, streams.config_of(number), settings) for number in missing]):
        cache.add(made)
    for _, answer in there:
        cache.add(StreamInfo.of(await _grow(api, streams, answer) if _set_of(answer) in others else answer))
    return [cache.streams[name] for name in streams.streams.names]


async def in_groups(requests: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """The results in order, of :data:`AT_ONCE` requests at a time.

    :raises MamaError: the first error of the first requests that fail
    """
    found: list[T] = []
    for first in range(0, len(requests), AT_ONCE):
        answers = await asyncio.gather(*(ask() for ask in requests[first : first + AT_ONCE]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
    return found


async def _create(api: JetStreamClient, config: dict[str, Any], settings: NatsSettings) -> StreamInfo:
    return await create(api, config.pop("name"), config.pop("subjects"), settings, **config)


async def _info(api: JetStreamClient, name: str) -> dict[str, Any] | None:
    try:
        return await api.request(f"STREAM.INFO.{name}")
    except ApiForbidden:
        raise ConfigError(
            f"option streams: no permission to ask {api.prefix}STREAM.INFO.{name}, which says whether the stream is a "
            "member of the set"
        ) from None
    except ApiError as e:
        if e.code == NO_STREAM:
            return None
        raise Unavailable(f"stream {name!r}: {e.description}") from e


def _set_of(answer: dict[str, Any]) -> str | None:
    """The set that a member says it belongs to; None: it was made by other hands, and does not say."""
    found = (answer["config"].get("metadata") or {}).get(METADATA)
    return None if found is None else str(found)


def _require_set(streams: StreamSet, there: list[tuple[int, dict[str, Any]]], grow: bool) -> set[str]:
    """Other sets that the streams which are there belong to, and which may become this one.

    :raises ConfigError: they may not, or a stream is no member
    """
    for number, answer in there:
        _require_member(streams, number, answer)
    others = {known for _, answer in there if (known := _set_of(answer)) is not None} - {str(streams.streams)}
    for known in others:
        _require_growth(streams, known, grow)
    return others


def _require_member(streams: StreamSet, number: int, answer: dict[str, Any]) -> None:
    name, wanted, filters = streams.streams.name(number), streams.filter_of(number), Filters()
    for subject in answer["config"].get("subjects") or ():
        filters.add(subject, name)
    if filters.owner(wanted.replace(">", "any")) is None:
        raise ConfigError(
            f"option streams={streams.streams}: stream {name!r} does not take {wanted}, so it is no member of the set: "
            "choose other names, or change its subjects and its subject_transform"
        )


def _require_growth(streams: StreamSet, known: str, grow: bool) -> None:
    """:raises ConfigError: the set ``known`` may not become this one"""
    digits = known.partition("..")[2].partition("}")[0]
    if not digits.isdigit() or int(digits) + 1 >= streams.streams.count:
        raise ConfigError(
            f"option streams={streams.streams}: the streams belong to {known}, and topics would go to other streams "
            "than those of its other writers: name all streams of the set"
        )
    if not grow:
        raise ConfigError(
            f"option streams={streams.streams}: the set is {known}. To let it grow, end all writers with a whole "
            "batch, let readers come to the end if they need the order, and write once with createStream=true and "
            "growStreams=true"
        )


async def _grow(api: JetStreamClient, streams: StreamSet, answer: dict[str, Any]) -> dict[str, Any]:
    config = dict(answer["config"])
    config["metadata"] = {**(config.get("metadata") or {}), METADATA: str(streams.streams)}
    try:
        return await api.request(f"STREAM.UPDATE.{config['name']}", config)
    except ApiForbidden:
        raise ConfigError(f"option growStreams: no permission to change the stream {config['name']!r}") from None
    except ApiError as e:
        raise ConfigError(f"option growStreams: stream {config['name']!r}: {e.description}") from e


async def describe_load(api: JetStreamClient, streams: StreamSet, grow: bool) -> list[str]:
    """How messages are spread over the members, for people.

    :raises ConfigError: a write would be refused, members that are missing aside
    """
    answers = await in_groups([partial(_info, api, name) for name in streams.streams.names])
    _require_set(streams, [(n, answer) for n, answer in enumerate(answers) if answer is not None], grow)
    there = {name: a for name, a in zip(streams.streams.names, answers, strict=True) if a is not None}
    lines = [f"{streams.streams}: {len(there)} of {len(answers)} streams are there"]
    counts = {name: int(a["state"]["messages"]) for name, a in there.items()}
    total = sum(counts.values())
    for name, a in there.items():
        leader = (a.get("cluster") or {}).get("leader")
        share = f" ({counts[name] / total:.1%})" if total else ""
        topics = int(a["state"].get("num_subjects", 0))
        lines.append(
            f"{name}: {counts[name]:,} messages{share} of {topics:,} topics, {int(a['state']['bytes']):,} bytes"
            + (f", leader {leader}" if leader else "")
        )
    if total and there:
        most = max(counts.values()) * len(answers) / total
        lines[0] += f", {total:,} messages; the fullest has {most:.2f} times an even share"
    return lines

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
from .answers import ApiError, ApiForbidden, StreamInfo
from .api import JetStreamClient
from .streams import StreamCache, advice_to_create, create

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
    answers, others = await _look_up(api, streams, settings.grow_streams)
    missing = [number for number, answer in enumerate(answers) if answer is None]
    if missing and not settings.create_stream:
        names = ", ".join(streams.streams.name(number) for number in missing[:5])
        raise ConfigError(
            f"option streams={streams.streams}: {len(missing)} of {len(answers)} streams are not there: {names}; "
            f"{await advice_to_create(api, streams.streams.name(missing[0]))}"
        )
    for made in await in_groups([partial(_create, api, streams.config_of(number), settings) for number in missing]):
        cache.add(made)
    for stream in filter(None, answers):
        cache.add(await _grow(api, streams, stream) if _set_of(stream) in others else stream)
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


async def _look_up(api: JetStreamClient, streams: StreamSet, grow: bool) -> tuple[list[StreamInfo | None], set[str]]:
    """The members that are there, and other sets that they belong to, which may become this one.

    :raises ConfigError: they may not, or a stream is no member
    """
    answers = await in_groups([partial(_info, api, name) for name in streams.streams.names])
    for number, stream in enumerate(answers):
        if stream is not None:
            _require_member(streams, number, stream)
    others = {known for stream in filter(None, answers) if (known := _set_of(stream)) is not None}
    others -= {str(streams.streams)}
    for known in others:
        _require_growth(streams, known, grow)
    return answers, others


async def _info(api: JetStreamClient, name: str) -> StreamInfo | None:
    try:
        return await api.stream(name)
    except ApiForbidden:
        raise ConfigError(
            f"option streams: no permission to ask {api.prefix}STREAM.INFO.{name}, which says whether the stream is a "
            "member of the set"
        ) from None
    except ApiError as e:
        raise Unavailable(f"stream {name!r}: {e.description}") from e


def _set_of(stream: StreamInfo) -> str | None:
    """The set that a member says it belongs to; None: it was made by other hands, and does not say."""
    return stream.metadata.get(METADATA)


def _require_member(streams: StreamSet, number: int, stream: StreamInfo) -> None:
    name, wanted = stream.name, streams.filter_of(number)
    filters = Filters((subject, name) for subject in stream.subjects)
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


async def _grow(api: JetStreamClient, streams: StreamSet, stream: StreamInfo) -> StreamInfo:
    config = {**stream.config, "metadata": {**stream.metadata, METADATA: str(streams.streams)}}
    try:
        return StreamInfo.of(await api.request(f"STREAM.UPDATE.{stream.name}", config))
    except ApiForbidden:
        raise ConfigError(f"option growStreams: no permission to change the stream {stream.name!r}") from None
    except ApiError as e:
        raise ConfigError(f"option growStreams: stream {stream.name!r}: {e.description}") from e


async def describe_load(api: JetStreamClient, streams: StreamSet, grow: bool) -> list[str]:
    """How messages are spread over the members, for people.

    :raises ConfigError: a write would be refused, members that are missing aside
    """
    answers, _ = await _look_up(api, streams, grow)
    there = [stream for stream in answers if stream is not None]
    lines = [f"{streams.streams}: {len(there)} of {len(answers)} streams are there"]
    total = sum(stream.messages for stream in there)
    for stream in there:
        share = f" ({stream.messages / total:.1%})" if total else ""
        lines.append(
            f"{stream.name}: {stream.messages:,} messages{share} of {stream.topics:,} topics, {stream.size:,} bytes"
            + (f", leader {stream.leader}" if stream.leader else "")
        )
    if total:
        most = max(stream.messages for stream in there) * len(answers) / total
        lines[0] += f", {total:,} messages; the fullest has {most:.2f} times an even share"
    return lines

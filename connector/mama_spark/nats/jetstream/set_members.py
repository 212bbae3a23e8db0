"""Finds, makes and grows the members of stream sets (:mod:`..stream_set`), and describes their load."""

from __future__ import annotations

from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError

from ..settings import NatsSettings
from ..stream_set import METADATA, StreamSet
from ..subjects import Filters
from .answers import ApiError, ApiForbidden, StreamInfo
from .client import JetStream
from .streams import StreamCache, advice_to_create, create_all, info_in


def prepare_members(api: JetStream, cache: StreamCache, streams: StreamSet, settings: NatsSettings) -> list[StreamInfo]:
    """All members, found or made, and now in ``cache``. ConfigError: one is missing, is another stream, or belongs to a
    set of another size."""
    answers, others = _look_up(api, streams, settings.grow_streams)
    missing = [number for number, answer in enumerate(answers) if answer is None]
    if missing and not settings.create_stream:
        names = ", ".join(streams.streams.name(number) for number in missing[:5])
        raise ConfigError(
            f"option streams={streams.streams}: {len(missing)} of {len(answers)} streams are not there: {names}; "
            f"{advice_to_create(api, streams.streams.name(missing[0]))}"
        )
    for made in create_all(api, [streams.config_of(number) for number in missing], settings):
        cache.add(made)
    for stream in filter(None, answers):
        cache.add(_grow(api, streams, stream) if _set_of(stream) in others else stream)
    return [cache.streams[name] for name in streams.streams.names]


def _look_up(api: JetStream, streams: StreamSet, grow: bool) -> tuple[list[StreamInfo | None], set[str]]:
    """The existing members, and other sets that they name, which may become this one. ConfigError: such a set may not,
    or a stream is no member."""
    names = streams.streams.names
    found = api.request_all([(f"STREAM.INFO.{name}", None) for name in names])
    answers = [_info(api, name, answer) for name, answer in zip(names, found, strict=True)]
    for number, stream in enumerate(answers):
        if stream is not None:
            _require_member(streams, number, stream)
    others = {known for stream in filter(None, answers) if (known := _set_of(stream)) is not None}
    others -= {str(streams.streams)}
    for known in others:
        _require_growth(streams, known, grow)
    return answers, others


def _info(api: JetStream, name: str, answer: dict[str, Any] | MamaError) -> StreamInfo | None:
    if isinstance(answer, ApiForbidden):
        raise ConfigError(
            f"option streams: no permission to ask {api.prefix}STREAM.INFO.{name}, which says whether the stream is a "
            "member of the set"
        ) from None
    return info_in(name, answer)


def _set_of(stream: StreamInfo) -> str | None:
    """The set that a member names; None = made by other hands, and names none."""
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
    """Check that the set ``known`` may become this one. ConfigError: it may not."""
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


def _grow(api: JetStream, streams: StreamSet, stream: StreamInfo) -> StreamInfo:
    config = {**stream.config, "metadata": {**stream.metadata, METADATA: str(streams.streams)}}
    try:
        return StreamInfo.of(api.request(f"STREAM.UPDATE.{stream.name}", config))
    except ApiForbidden:
        raise ConfigError(f"option growStreams: no permission to change the stream {stream.name!r}") from None
    except ApiError as e:
        raise ConfigError(f"option growStreams: stream {stream.name!r}: {e.description}") from e


def describe_load(api: JetStream, streams: StreamSet, grow: bool) -> list[str]:
    """The spread of messages over the members, for people. ConfigError: a write would be refused, members that are
    missing aside."""
    answers, _ = _look_up(api, streams, grow)
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

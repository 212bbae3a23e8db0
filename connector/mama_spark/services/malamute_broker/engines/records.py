"""Encodes stored messages as :class:`~mama_spark.record_log.Records`; checks and filters topics. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mama_spark.errors import BadTopic
from mama_spark.message import HEADERS_TYPE
from mama_spark.record_log import Records

MAX_TOPIC = 255  #: octets: a length is one octet on the wire
_BAD_TOPIC = re.compile(r"[\x00-\x20\x7f]|(?:^|\.)(?:\*|>|)(?:\.|$)")


class LogMessage(NamedTuple):
    """:ivar payload: all content frames together; what Spark publishes has one
    :ivar headers: name and value, in order
    """

    sequence: int
    time: int
    subject: bytes
    payload: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def records(messages: Sequence[LogMessage]) -> Records:
    """The columns of at least one message, ascending. Octets that are no UTF-8 become ``\\xHH``."""
    sequences, times, subjects, payloads, headers = zip(*messages, strict=True)
    return Records(
        np.array(sequences, np.int64),
        np.array(times, np.int64),
        _text(pa.array(subjects, pa.binary()).dictionary_encode()),
        pa.array(payloads, pa.binary()),
        pa.array([_grouped(h) if h else None for h in headers], HEADERS_TYPE) if any(headers) else None,
    )


def _text(subjects: pa.DictionaryArray) -> pa.DictionaryArray:
    names = [_decoded(name) for name in subjects.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(subjects.indices, pa.array(names, pa.string()))


def _decoded(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


def _grouped(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(_decoded(name), []).append(_decoded(value))
    return list(found.items())


def topic_filter(topics: Sequence[str]) -> Callable[[bytes], bool]:
    """A test whether a subject matches one of the topics (``*`` one part, ``>`` all that follow; none = all)."""
    if not topics:
        return lambda subject: True
    pattern = re.compile("|".join(f"(?:{_regex(topic)})" for topic in topics), re.DOTALL)
    known: dict[bytes, bool] = {}

    def wanted(subject: bytes) -> bool:
        found = known.get(subject)
        if found is None:
            if len(known) >= 100_000:
                known.clear()
            found = known[subject] = pattern.fullmatch(_decoded(subject)) is not None
        return found

    return wanted


def _regex(topic: str) -> str:
    parts = topic.split(".")
    rest = parts[-1] == ">"
    body = r"\.".join("[^.]+" if part == "*" else re.escape(part) for part in (parts[:-1] if rest else parts))
    return body + (r"(?:\.|^).+" if rest else "")


def check_topic(topic: str | None) -> bytes:
    """The subject of a topic.

    :raises BadTopic: nothing can be published to it
    """
    if topic is None:
        raise BadTopic("the topic is null")
    subject = topic.encode()
    if len(subject) > MAX_TOPIC:
        raise BadTopic(f"a topic of {len(subject)} octets; a subject has at most {MAX_TOPIC}")
    if _BAD_TOPIC.search(topic):
        raise BadTopic(f"topic {topic!r} is empty, or has a blank, control character, empty part or wildcard")
    return subject

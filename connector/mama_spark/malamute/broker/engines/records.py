"""Encodes stored messages as :class:`~mama_spark.contracts.record_log.Records`; checks and filters topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import BadTopic
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.contracts.topics import compile_filters, why_unpublishable

MAX_TOPIC = 255  #: octets: a length is one octet on the wire


class LogMessage(NamedTuple):
    """:ivar payload: the joined content frames; messages of Spark have one
    :ivar headers: (name, value), in order
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
    """A test whether a subject matches one of the topics, which may have wildcards (none = all)."""
    if not topics:
        return lambda subject: True
    pattern = compile_filters(topics)
    known: dict[bytes, bool] = {}

    def wanted(subject: bytes) -> bool:
        found = known.get(subject)
        if found is None:
            if len(known) >= 100_000:
                known.clear()
            found = known[subject] = pattern.fullmatch(_decoded(subject)) is not None
        return found

    return wanted


def check_topic(topic: str | None) -> bytes:
    """The subject of a topic.

    :raises BadTopic: nothing can be published to it
    """
    if topic is None:
        raise BadTopic("the topic is null")
    subject = topic.encode()
    if len(subject) > MAX_TOPIC:
        raise BadTopic(f"a topic of {len(subject)} octets; a subject has at most {MAX_TOPIC}")
    if (fault := why_unpublishable(topic)) is not None:
        raise BadTopic(fault)
    return subject

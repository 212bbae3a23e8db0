"""The last message of each subject: which these are, as of one sequence of the stream, and how they are read.

A consumer that begins with the last message of each subject delivers these in order, and then what came meanwhile; so
when nothing is pending for it, the last that it delivered of each subject is the state at that sequence, whatever was
overwritten on the way. Which replica has the consumer makes no difference: it ends when that has caught up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import Bools, Int64s
from mama_spark.contracts.record_log import CurrentRecords, Records

from ..jetstream.answers import NO_MESSAGE, ApiError, StreamInfo
from ..jetstream.client import message_of
from ..protocol.direct_get import StoredMessage
from ..protocol.records import DeliveryBuffer, DeliveryNumbers, header_column, text
from .log_connection import LogConnection
from .range_reader import RangeReader, SequenceRange, as_records

#: Bytes of a message up to which the server is faster with its payload than without.
_SMALL = 512
#: Messages that are requested one by one in the time in which a consumer delivers one.
_DELIVERIES_OF_A_REQUEST = 20
#: Messages that are requested one by one, for one batch.
_REQUESTS = 128


def find_current(logs: LogConnection, stream: StreamInfo, filters: list[str]) -> CurrentRecords:
    """
    :param stream: as the server has just told it
    """
    newest, large = stream.limit("max_msgs_per_subject") != 1, stream.size > _SMALL * stream.messages
    wanted = SequenceRange(0, sys.maxsize, filters, headers=False, payloads=not large, newest=newest)
    last, sequences, topics = stream.last, list[Int64s](), list[pa.Array]()

    def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> int:
        sequences.append(numbers.sequences)
        topics.append(text(pa.array(buffer.subjects, pa.binary())))
        return numbers.pending

    for pending in RangeReader(logs, stream, wanted, convert):
        last = max(stream.last, int(sequences[-1][-1]))
        if not pending and sequences[-1][-1] >= stream.last:
            break
    return CurrentRecords.of(last, sequences, topics)


def read_current(
    logs: LogConnection, stream: StreamInfo, filters: list[str], wanted: CurrentRecords
) -> Iterator[Records]:
    """See :class:`~mama_spark.contracts.record_log.RecordLog`. By the range of their sequences, or from a consumer of
    all that is current, or one by one, whichever delivers least."""
    n = len(wanted)
    if not n:
        return
    in_range, newest, each = n * wanted.spread, wanted.before + n, n * _DELIVERIES_OF_A_REQUEST
    left = np.ones(n, np.bool_)
    if each > min(in_range, newest):
        after = int(wanted.sequences[0]) - 1 if in_range <= newest else 0
        found = SequenceRange(after, int(wanted.sequences[-1]), filters, newest=newest < in_range)
        for records in RangeReader(logs, stream, found, as_records(found)):
            rows, there = wanted.among(records.sequences)
            left[rows] = False
            if len(there):
                yield records.take(there)
    if each <= in_range or newest < in_range:  # a subject that has changed since is elsewhere there
        by_sequence = partial(_requested, logs, stream.name, left, lambda row: {"seq": int(wanted.sequences[row])})
        yield from by_sequence()
        if stream.replicas > 1 and left.any():  # a leader that is behind does not have what it will have
            logs.stream_with(stream.name, int(wanted.sequences[-1]))
            yield from by_sequence()
    if (topics := wanted.topics) is not None:
        yield from _requested(logs, stream.name, left, lambda row: {"last_by_subj": topics[row].as_py()})


def _requested(
    logs: LogConnection, stream: str, left: Bools, request: Callable[[int], dict[str, Any]]
) -> Iterator[Records]:
    """Those that are ``left``, as the leader has them; they are struck out there."""
    rows = np.flatnonzero(left)
    for i in range(0, len(rows), _REQUESTS):
        some = rows[i : i + _REQUESTS].tolist()
        answers = logs.api.request_all([(f"STREAM.MSG.GET.{stream}", request(row)) for row in some])
        messages = []
        for row, answer in zip(some, answers, strict=True):
            if isinstance(answer, ApiError) and answer.code == NO_MESSAGE:
                continue
            if isinstance(answer, MamaError):
                raise answer
            left[row] = False
            messages.append(message_of(answer))
        if messages:
            yield records_of_stored(messages)


def records_of_stored(messages: Sequence[StoredMessage]) -> Records:
    """Messages as columns."""
    return Records(
        np.array([one.sequence for one in messages], np.int64),
        np.array([one.at for one in messages], np.int64),
        pa.array([one.subject for one in messages], pa.string()),
        pa.array([one.payload for one in messages], pa.binary()),
        header_column([one.block for one in messages], len(messages)),
    )

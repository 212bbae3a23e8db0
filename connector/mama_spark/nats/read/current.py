"""Reads the last message of each subject, as of one sequence of the stream.

A consumer that begins with the last message of each subject delivers these in order, and then newer messages. So when
it has nothing pending, its last delivery of each subject is the state at that sequence, whatever was overwritten
meanwhile. Any replica may hold the consumer: it ends when that one has caught up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from mama_spark.contracts.record_log import CurrentRecords, Records

from ..jetstream.answers import StreamInfo
from ..jetstream.client import AT_ONCE, message_of
from ..protocol.direct_get import StoredMessage
from ..protocol.records import DeliveryBuffer, DeliveryNumbers, header_column, records_of
from .log_connection import LogConnection
from .range_reader import RangeReader, SequenceRange, as_records
from .stream_index import StreamIndex

#: Bytes of a message up to which the server is faster with its payload than without.
_SMALL = 512


def read_newest(logs: LogConnection, stream: StreamInfo, filters: list[str], payloads: bool) -> Iterator[Records]:
    """See :meth:`~mama_spark.contracts.record_log.RecordLog.current`; ``stream``: the server's latest answer."""
    newest = stream.limit("max_msgs_per_subject") != 1
    sent = payloads or stream.size <= _SMALL * stream.messages
    wanted = SequenceRange(0, sys.maxsize, filters, headers=payloads, payloads=sent, newest=newest)

    def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> tuple[Records, int]:
        return records_of(buffer, numbers, wanted.headers), numbers.pending

    for records, pending in RangeReader(logs, stream, wanted, convert):
        yield records
        if not pending and records.sequences[-1] >= stream.last:
            return


def read_current(
    logs: LogConnection, stream: StreamInfo, index: StreamIndex, wanted: CurrentRecords, filters: list[str]
) -> Iterator[Records]:
    """As :meth:`~mama_spark.contracts.record_log.RecordLog.read_current`: by their range, or from a consumer of all
    current records, whichever delivers less. That consumer lacks records whose topics have changed since they
    were listed; these come last. ``stream``: state when its log was opened."""
    before, last = int(wanted.sequences[0]) - 1, int(wanted.sequences[-1])
    newest = wanted.before + len(wanted) < index.count(filters, before) - index.count(filters, last)
    found = SequenceRange(0 if newest else before, last, filters, newest=newest)
    came = [np.zeros(0, np.int64)]
    for records in map(wanted.among, RangeReader(logs, stream, found, as_records(found))):
        came.append(records.sequences)
        yield records
    left = np.setdiff1d(wanted.sequences, np.concatenate(came)).tolist() if newest else []
    for i in range(0, len(left), AT_ONCE):
        calls = [(f"STREAM.MSG.GET.{stream.name}", {"seq": one}) for one in left[i : i + AT_ONCE]]
        answers = logs.api.request_all(calls)  # the changes bring missing ones
        if messages := [message_of(answer) for answer in answers if isinstance(answer, dict)]:
            yield records_of_stored(messages)


def records_of_stored(messages: Sequence[StoredMessage]) -> Records:
    return Records(
        np.array([one.sequence for one in messages], np.int64),
        np.array([one.at for one in messages], np.int64),
        pa.array([one.subject for one in messages], pa.string()),
        pa.array([one.payload for one in messages], pa.binary()),
        header_column([one.block for one in messages], len(messages)),
    )

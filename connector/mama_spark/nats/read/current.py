"""The last message of each subject, as of one sequence of the stream.

A consumer that begins with the last message of each subject delivers these in order, and then what came meanwhile; so
when nothing is pending for it, the last that it delivered of each subject is the state at that sequence, whatever was
overwritten on the way. Which replica has the consumer makes no difference: it ends when that has caught up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from mama_spark.contracts.record_log import Records

from ..jetstream.answers import StreamInfo
from ..protocol.direct_get import StoredMessage
from ..protocol.records import DeliveryBuffer, DeliveryNumbers, header_column, records_of
from .log_connection import LogConnection
from .range_reader import RangeReader, SequenceRange

#: Bytes of a message up to which the server is faster with its payload than without.
_SMALL = 512


def read_newest(logs: LogConnection, stream: StreamInfo, filters: list[str], payloads: bool) -> Iterator[Records]:
    """See :meth:`~mama_spark.contracts.record_log.RecordLog.current`.

    :param stream: as the server has just told it
    """
    newest = stream.limit("max_msgs_per_subject") != 1
    sent = payloads or stream.size <= _SMALL * stream.messages
    wanted = SequenceRange(0, sys.maxsize, filters, headers=payloads, payloads=sent, newest=newest)

    def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> tuple[Records, int]:
        return records_of(buffer, numbers, wanted.headers), numbers.pending

    for records, pending in RangeReader(logs, stream, wanted, convert):
        yield records
        if not pending and records.sequences[-1] >= stream.last:
            return


def records_of_stored(messages: Sequence[StoredMessage]) -> Records:
    """Messages as columns."""
    return Records(
        np.array([one.sequence for one in messages], np.int64),
        np.array([one.at for one in messages], np.int64),
        pa.array([one.subject for one in messages], pa.string()),
        pa.array([one.payload for one in messages], pa.binary()),
        header_column([one.block for one in messages], len(messages)),
    )

"""Reads record logs for ``mamasub``: opens a bridge for one call or one range, and retries while the broker is away.

The bridge is opened for each call, because Spark moves readers between processes; connections are kept in a pool of the
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mama_spark.bridges import log_bridge
from mama_spark.bridges.reconnecting import OutageTimer, ReconnectingBridge
from mama_spark.errors import Unavailable
from mama_spark.options import ReadOptions
from mama_spark.record_log import RecordLog, RecordLogBridge, Records

T = TypeVar("T")


def call(o: ReadOptions, question: Callable[[RecordLogBridge], T]) -> T:
    """The result of ``question``, which may be called several times.

    :raises MamaError: the last one, after ``waitTimeout`` without an answer; at once if it is not retryable
    """
    bridge = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    try:
        return bridge.call(question)
    finally:
        bridge.close()


def read_range(
    o: ReadOptions,
    find: Callable[[RecordLogBridge], RecordLog | None],
    after: int,
    up_to: int,
    topics: Sequence[str],
    check: Callable[[RecordLog], None],
) -> Iterator[Records]:
    """The records of a range; after an outage it continues behind the last record that came.

    :param find: the log; None ends the read
    :param check: called with the log after the last record
    :raises Unavailable: no record came for ``waitTimeout``
    """
    outage = OutageTimer(o.wait_timeout)
    while True:
        try:
            with contextlib.closing(log_bridge(o, o.wait_timeout)) as bridge:
                bridge.open()
                log = find(bridge)
                if log is None:
                    return
                for records in log.read(after, up_to, topics):
                    if len(records):
                        yield records
                        after = int(records.sequences[-1])
                    outage.succeeded()
                check(log)
                return
        except Unavailable as e:
            outage.wait(e)

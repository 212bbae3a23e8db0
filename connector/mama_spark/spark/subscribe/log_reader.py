"""Reads record logs for ``mamasub``: opens a bridge for one call or one range, and retries while the broker is away.

The bridge is opened for each call, because Spark moves readers between processes; connections are kept in a pool of the
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from mama_spark.contracts.errors import OptionError, Unavailable
from mama_spark.contracts.record_log import (
    RecordLog,
    RecordLogBridge,
    Records,
)
from mama_spark.options import ReadOptions
from mama_spark.publishing.window.reconnecting import OutageTimer
from mama_spark.registry import log_bridge


class ReadObserver(Protocol):
    """Measures a read."""

    def watched(self, batches: Iterable[Records]) -> Iterator[Records]: ...
    def lost_connection(self) -> None: ...


def read_range(
    o: ReadOptions,
    find: Callable[[RecordLogBridge], RecordLog | None],
    after: int,
    up_to: int,
    topics: Sequence[str],
    check: Callable[[RecordLog], None],
    observer: ReadObserver | None = None,
) -> Iterator[Records]:
    """The records of a range; after an outage it continues behind the last record that came. Their payloads may be
    binary_view arrays.

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
                batches = log.read_views(after, up_to, topics)
                for records in batches if observer is None else observer.watched(batches):
                    if len(records):
                        yield records
                        after = int(records.sequences[-1])
                    outage.succeeded()
                check(log)
                return
        except Unavailable as e:
            if observer is not None:
                observer.lost_connection()
            outage.wait(e)


def most_tasks(log: RecordLog, at_least: int | None) -> int | None:
    """How many tasks can read a log at once; None = any number.

    :param at_least: of them, as option ``minPartitions`` wants it
    :raises OptionError: the log does not take so many
    """
    limit = log.most_readers()
    if limit is None:
        return None
    most, why = limit
    if at_least is not None and at_least > most:
        raise OptionError(
            f"option minPartitions={at_least}: {why}, so {most} tasks can read it at once. Set minPartitions to {most} "
            "or less, or raise that limit"
        )
    return most

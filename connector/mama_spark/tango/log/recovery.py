"""Recovery of a recorder: restores the state of the last recorder of its name from the log.

The caller passes the log; the module does no other I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from mama_spark.errors import ConfigError
from mama_spark.record_log import RecordLog

from .recorder_state import BadState, RecorderState, merge_states
from .records import DecodedRecords, RecordKind, decode

_FIRST_RANGE = 50_000  #: records that are searched first, from the end of the log; each further range is doubled


def restore(state: RecorderState, log: RecordLog) -> None:
    """Restore the state of the last recorder of the same name: its last STATE records, and the records after them.

    :param state: empty state; its name selects the STATE records
    :raises ConfigError: the last state is invalid
    :raises MamaError: the log cannot be read
    """
    bounds = log.bounds()
    parts, sequence = last_state(log, bounds.first, bounds.last, state.topic)
    topics = (f"{state.prefix}.*.*.*.*.*.*",)

    def tail() -> Iterator[DecodedRecords]:
        for records in log.read(sequence, bounds.last, topics):
            yield decode(records.payloads)

    try:
        state.restore(merge_states(parts), tail())
    except BadState as error:
        raise ConfigError(f"log {log.name!r}: {error}; give the recorder another name") from None


def last_state(log: RecordLog, first: int, last: int, topic: str) -> tuple[list[bytes], int]:
    """Search backwards for the last complete state with a topic.

    :param first: first sequence of the log
    :param last: last sequence to search
    :returns: contents of its STATE records, possibly after those of older states; and the sequence of the last one,
        ``first - 1`` if there is none
    """
    parts: list[bytes] = []
    newest, low, size = first - 1, last, _FIRST_RANGE
    while low >= first and merge_states(parts) is None:
        after = max(first - 1, low - size)
        found: list[bytes] = []
        for records in log.read(after, low, (topic,)):
            decoded = decode(records.payloads)
            for row, kind in enumerate(decoded.kind.tolist()):
                if kind == RecordKind.STATE:
                    found.append(decoded.frames.datas[row])
                    newest = max(newest, int(records.sequences[row]))
        parts = found + parts
        low, size = after, 2 * size
    return parts, newest

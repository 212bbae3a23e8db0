"""What a log says of the recorder that wrote it. Pure, but for the log that it is given."""

from __future__ import annotations

from collections.abc import Iterator

from mama_spark.errors import ConfigError
from mama_spark.record_log import RecordLog

from .recorder_state import BadState, RecorderState, merge_states
from .records import DecodedRecords, RecordKind, decode

_WINDOW = 50_000  #: records that are looked through at once for the last state


def restore(recording: RecorderState, source: RecordLog) -> None:
    """Read from the log where the last recorder of this name ended.

    :raises MamaError: it cannot be read
    """
    bounds = source.bounds()
    data, at = last_state(source, bounds.first, bounds.last, recording.topic)
    topics = (f"{recording.prefix}.*.*.*.*.*.*",)

    def tail() -> Iterator[DecodedRecords]:
        for records in source.read(at, bounds.last, topics):
            yield decode(records.payloads)

    try:
        recording.restore(merge_states(data), tail())
    except BadState as error:
        raise ConfigError(f"log {source.name!r}: {error}; give the recorder another name") from None


def last_state(source: RecordLog, first: int, last: int, topic: str) -> tuple[list[bytes], int]:
    """Parts of the last state that stands under this topic, and maybe of some before; and the sequence of the last
    one, that before the first record if there is none."""
    data: list[bytes] = []
    at, low, window = first - 1, last, _WINDOW
    while low >= first and merge_states(data) is None:
        after = max(first - 1, low - window)
        found: list[bytes] = []
        for records in source.read(after, low, (topic,)):
            recorded = decode(records.payloads)
            for row, kind in enumerate(recorded.kind.tolist()):
                if kind == RecordKind.STATE:
                    found.append(recorded.frames.datas[row])
                    at = max(at, int(records.sequences[row]))
        data = found + data
        low, window = after, 2 * window
    return data, at

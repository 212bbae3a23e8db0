"""Headers of messages as columns of lines, and which lines no bridge sends. Pure.

A name is not empty and holds no blank, colon or ASCII control character; a value holds no line break and no NUL. NATS
would read such a line as two, or end the block there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .errors import BadRow, PublishError

if TYPE_CHECKING:  # protocols need the limits, and no Arrow
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from .message import Int64s

#: Carries a message's id, in the words of NATS over all middlewares.
MSG_ID = "Nats-Msg-Id"
#: The message is only stored if the last one of its subject has this sequence; 0 = the subject has no message.
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
#: Headers of the NATS server begin so, in lower case: they control how a message is stored, or say how it was.
NATS_PREFIX = "nats-"
#: Headers of one message. A frame of the largest size could have a thousand times as many.
MAX_HEADERS = 65_536
#: Rows that a message may announce in its headers: a reader rejects packs with more, and a writer never makes them.
MAX_PACK_ROWS = 1_000_000
TOO_MANY_HEADERS = f"it has more than {MAX_HEADERS:,} headers, which are not read"

_BAD_NAME = r"[\x00-\x20:\x7f]|^$"
_BAD_VALUE = r"[\x00\r\n]"
_NAME_FAULT = "is empty or holds a blank, colon or control character"
_VALUE_FAULT = "has a null value or a line break in it"


class HeaderLines(NamedTuple):
    """The header lines of many messages.

    :ivar names: string, one a line
    :ivar values: string, one a line; may be null
    :ivar starts: first line of each message, and the end of the last one's
    """

    names: pa.Array
    values: pa.Array
    starts: Int64s

    @classmethod
    def of(cls, headers: pa.Array) -> HeaderLines:
        """The header lines of a column of headers.

        :param headers: :data:`~mama_spark.contracts.message.HEADERS_TYPE`
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        n = len(headers)
        offsets = np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + n + 1]
        offsets = offsets.astype(np.int64)
        if headers.null_count:  # a null element may still own entries
            valid = headers.is_valid().to_numpy(zero_copy_only=False)
            if np.diff(offsets)[~valid].any():
                return cls.of(pa.array(headers.to_pylist(), headers.type))
        lo, hi = int(offsets[0]), int(offsets[-1])
        keys, lists = headers.keys[lo:hi], headers.items[lo:hi]
        lengths = pc.list_value_length(lists)
        lengths = pc.fill_null(lengths, 0) if lengths.null_count else lengths
        counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        if (counts == 1).all():
            return cls(keys, lists.flatten(), (offsets - lo).astype(np.int64))
        names = keys.take(pa.array(np.repeat(np.arange(len(keys)), counts)))
        ends = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(counts, out=ends[1:])
        return cls(names, lists.flatten(), ends[offsets - lo])

    @property
    def rows(self) -> Int64s:
        """The message of each line."""
        import numpy as np

        counts = np.diff(self.starts)
        return np.repeat(np.arange(len(counts)), counts)


def bad_values(values: pa.Array) -> pa.Array:
    """True for each value of a header, or id, that cannot be sent, and for null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not values.null_count and not (_bytes(values) <= ord("\r")).any():  # most are: one pass over all of them
        return pa.array(np.zeros(len(values), np.bool_))
    return pc.fill_null(pc.match_substring_regex(values, _BAD_VALUE), True)


def _bad_names(names: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from .message import payload_sizes

    name_bytes = _bytes(names)
    good = not names.null_count and payload_sizes(names).min(initial=1) > 0
    if good and not ((name_bytes <= ord(" ")) | (name_bytes == ord(":")) | (name_bytes == 0x7F)).any():
        return pa.array(np.zeros(len(names), np.bool_))
    return pc.match_substring_regex(names, _BAD_NAME)


def _bytes(texts: pa.Array) -> npt.NDArray[np.uint8]:
    import numpy as np

    from .message import payload_bounds

    data = texts.buffers()[2]
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    bounds = payload_bounds(texts)
    return np.frombuffer(data, np.uint8)[int(bounds[0]) : int(bounds[-1])]


def reject_lines(lines: HeaderLines, bad: dict[int, PublishError], also: Sequence[tuple[pa.Array, str]] = ()) -> None:
    """Add the messages with a line that cannot be sent to ``bad``, unless they are there.

    :param also: further faults: a mask over the lines, and what is said of such a line
    """
    import numpy as np
    import pyarrow.compute as pc

    checks = [(_bad_names(lines.names), _NAME_FAULT), (bad_values(lines.values), _VALUE_FAULT), *also]
    for mask, reason in checks:
        faults = pc.fill_null(mask, True) if mask.null_count else mask
        for line in np.flatnonzero(faults.to_numpy(zero_copy_only=False)).tolist():
            row = int(np.searchsorted(lines.starts, line, "right")) - 1
            bad.setdefault(row, BadRow(f"header {lines.names[line].as_py()!r} {reason}"))

"""Runs of fields that the messages of a feed repeat, so that one call reads many fields. Pure.

A :class:`Run` is learned from the first message that has it, and cut to what later messages have in common with it;
another run begins there. So runs become the branches of a tree, whatever a feed sends.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .field_types import FieldType
from .status import Status, StatusError

#: Most runs that are remembered, fields of one, and bytes of a head: a hostile sender fills some megabytes at most.
MOST_RUNS, MOST_FIELDS, LONGEST_HEAD = 2048, 32, 64


class BadMessage(StatusError):
    """Invalid bytes of a message, or a message that cannot be encoded; the text has place and reason."""

    def __init__(self, info: str, status: Status = Status.INVALID_ARG) -> None:
        super().__init__(status, info)

    def __reduce__(self) -> tuple[type[BadMessage], tuple[str, Status]]:
        return type(self), (self.info, self.status)


#: (data, position, end, levels left) -> (value, position after it)
Reader = Callable[[bytes, int, int, int], tuple[Any, int]]
#: Code of the layout of a value of fixed size, and what makes the value of its bytes where ``struct`` does not.
FixedType = tuple[str, Callable[[bytes], Any] | None]


def text_of(raw_bytes: bytes) -> str:
    """Text has no encoding in C: what is no UTF-8 is read as Latin-1."""
    try:
        return raw_bytes.decode()
    except UnicodeDecodeError:
        return raw_bytes.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive fields as a feed repeats them, read by one call: fields of fixed size, then perhaps the head of one
    of variable size.

    :ivar heads: type, fid, name and NUL of each field
    :ivar ends: end of each value of fixed size; for a last field of variable size, end of its head
    :ivar size: bytes of all of them; the last one's value not included where its size is variable
    :ivar mask: mask of the bytes of the heads, as a number: comparing one number is faster than comparing the heads
    :ivar pattern: value of these bytes
    :ivar unpack: (data, position) -> value of each field; a TIME or PRICE is its bytes
    :ivar conversions: (index, conversion) of each value that ``unpack`` leaves as bytes
    :ivar read: reads the value of the last field; None: it has a fixed size like the others
    """

    heads: tuple[bytes, ...]
    names: tuple[str, ...]
    fids: tuple[int, ...]
    types: tuple[FieldType, ...]
    ends: tuple[int, ...]
    size: int
    mask: int
    pattern: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    conversions: tuple[tuple[int, Callable[[bytes], Any]], ...]
    read: Reader | None

    def fields_within(self, most_bytes: int) -> int:
        """Number of fields that fit in so many bytes."""
        return bisect.bisect_right(self.ends, most_bytes)

    def converted(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        made = list(values)
        for place, convert in self.conversions:
            made[place] = convert(made[place])
        return tuple(made)

    def equal_fields(self, data: bytes, at: int) -> int:
        """Number of fields, from the first on, that have these heads in ``data``."""
        begin = at
        for i, (head, end) in enumerate(zip(self.heads, self.ends, strict=True)):
            if not data.startswith(head, begin):
                return i
            begin = at + end
        return len(self.heads)


class FieldHead(NamedTuple):
    """The head of a field. Size and code are of values of fixed size, else 0 and empty."""

    head_bytes: bytes
    name: str
    fid: int
    type: FieldType
    size: int
    code: str
    convert: Callable[[bytes], Any] | None
    read: Reader | None


class RunTable:
    """The runs that messages had so far, by the head of their first field. Usable from any thread.

    :param fixed: the types of fixed size
    :param readers: readers of the values of the other types
    """

    def __init__(self, fixed: Mapping[FieldType, FixedType], readers: Mapping[FieldType, Reader]) -> None:
        self._fixed, self._readers = fixed, readers
        self._types = {int(field_type): field_type for field_type in (*fixed, *readers)}
        self._runs: dict[bytes, Run] = {}
        self.known = self._runs.get  #: the run that begins with a head; None: there is none yet

    def __len__(self) -> int:
        return len(self._runs)

    def learn(self, data: bytes, at: int, end: int) -> Run:
        """The run that begins at ``at``, of one field at least; it is remembered.

        :raises BadMessage: its first field is not valid
        """
        heads = [self._head(data, at, end)]
        behind = at + len(heads[0].head_bytes) + heads[0].size
        if behind > end:
            raise BadMessage(f"the field at byte {at} ends inside its value")
        while heads[-1].read is None and behind < end and len(heads) < MOST_FIELDS:
            try:
                head = self._head(data, behind, end)
            except BadMessage:
                break  # the reader of this field raises it
            behind += len(head.head_bytes) + head.size
            if behind > end or len(head.head_bytes) > LONGEST_HEAD:
                break
            heads.append(head)
        return self._remember(_run_of(heads))

    def shorten(self, run: Run, fields: int, at: int) -> Run:
        """The first ``fields`` fields of a run, which replace it; ``at``: offset of the run in the message.

        :raises BadMessage: none: the message ends inside the first
        """
        if not fields:
            raise BadMessage(f"the field at byte {at} ends inside its value")
        return self._remember(_run_of([self._head(head, 0, len(head)) for head in run.heads[:fields]]))

    def _remember(self, run: Run) -> Run:
        if len(run.heads[0]) <= LONGEST_HEAD:
            if len(self._runs) >= MOST_RUNS:
                self._runs.clear()
            self._runs[run.heads[0]] = run
        return run

    def _head(self, data: bytes, at: int, end: int) -> FieldHead:
        name_end = data.find(0, at + 3, end)
        if name_end < 0:
            raise BadMessage(f"the field at byte {at} ends inside its head")
        field_type = self._types.get(data[at])
        if field_type is None:
            raise BadMessage(f"the field at byte {at} is of unknown type {data[at]}")
        head_bytes = data[at : name_end + 1]
        name, fid = text_of(head_bytes[3:-1]), head_bytes[1] | head_bytes[2] << 8
        if not (name or fid):
            raise BadMessage(f"the field at byte {at} has neither name nor fid")
        code, convert = self._fixed.get(field_type, ("", None))
        size = struct.calcsize(f"<{code}")
        return FieldHead(head_bytes, name, fid, field_type, size, code, convert, self._readers.get(field_type))


def _run_of(heads: Sequence[FieldHead]) -> Run:
    layout = struct.Struct("<" + "".join(f"{len(head.head_bytes)}x{head.code}" for head in heads))
    ends = tuple(itertools.accumulate(len(head.head_bytes) + head.size for head in heads))
    mask = b"".join(b"\xff" * len(head.head_bytes) + bytes(head.size) for head in heads)
    pattern = b"".join(head.head_bytes + bytes(head.size) for head in heads)
    conversions = tuple((i, head.convert) for i, head in enumerate(heads) if head.convert is not None)
    head_bytes, names, fids, types, *_ = zip(*heads, strict=True)
    return Run(
        head_bytes, names, fids, types, ends, layout.size, int.from_bytes(mask, "little"),
        int.from_bytes(pattern, "little"), layout.unpack_from, conversions, heads[-1].read,
    )  # fmt: skip

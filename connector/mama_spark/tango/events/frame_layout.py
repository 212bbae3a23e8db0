"""Layout of the data frame of an event with a single number, and a fast encoder that uses it. Pure.

Frames of the same kind, IDL version, byte order, settability and length of name have all fields at the same offsets:
many of them are one numpy structured array, and one is one ``struct``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..giop.cdr import CdrError
from ..topics import IDL, Topic
from ..types import (
    DTYPES,
    KIND_OF,
    NO_DIM,
    ONE,
    STRUCT_CODES,
    AttributeValue,
    DataType,
    EventType,
    Format,
    Quality,
    ValueKind,
)
from .event_codec import BIG, LITTLE, MAGIC, usual_call, write_data

Times = npt.NDArray[np.int64]
_VALUES_AT = 12  # magic, discriminator, count


@dataclass(frozen=True)
class FrameLayout:
    """One such layout.

    :ivar idl: 5, or 4: without the data type
    :ivar settable: the set value follows the read value
    :ivar name_size: bytes of the attribute's name, without its NUL
    """

    little: bool
    idl: int
    kind: ValueKind
    settable: bool
    name_size: int

    @property
    def count(self) -> int:
        """Numbers in the value: read, and set."""
        return 2 if self.settable else 1

    @cached_property
    def quality_at(self) -> int:
        """Offset of the quality, after the value and its padding."""
        end = _VALUES_AT + self.count * DTYPES[self.kind].itemsize
        return end + -end % 4

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The frame as a numpy structure of the frame's size; what no field covers is padding."""
        order: Literal["<", ">"] = "<" if self.little else ">"
        value: Any = np.uint8 if self.kind is ValueKind.BOOL else DTYPES[self.kind].newbyteorder(order)
        u4, i4 = order + "u4", order + "i4"
        at = self.quality_at
        fields: dict[str, tuple[Any, int]] = {"magic": ("<u4", 0), "kind": (u4, 4), "count": (u4, 8)}
        fields["read"] = (value, _VALUES_AT)
        if self.settable:
            fields["written"] = (value, _VALUES_AT + DTYPES[self.kind].itemsize)
        names = ["quality", "format", *(["data_type"] if self.idl == IDL else []), "sec", "usec", "nsec", "name_size"]
        for name in names:
            fields[name] = (i4 if name in ("data_type", "sec", "usec", "nsec") else u4, at)
            at += 4
        fields["name"] = (f"({self.name_size + 1},)u1", at)
        at += self.name_size + 1
        at += -at % 4
        for name in ("r_x", "r_y", "w_x", "w_y", "errors"):
            fields[name] = (u4, at)
            at += 4
        formats, offsets = zip(*fields.values(), strict=True)
        return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": at})

    @property
    def constants(self) -> dict[str, Any]:
        """Fields that have the same value in all frames of this layout."""
        w_x = 1 if self.settable else 0
        return {
            "magic": int.from_bytes(MAGIC, "little"), "kind": int(self.kind), "count": self.count,
            "format": int(Format.SCALAR), "name_size": self.name_size + 1,
            "r_x": 1, "r_y": 0, "w_x": w_x, "w_y": 0, "errors": 0,
        }  # fmt: skip

    def accepts(self, found: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Flags of the frames (an array of :attr:`dtype`) that have this layout and only valid values."""
        good: npt.NDArray[np.bool_] = found["quality"] <= max(Quality)
        for name, value in self.constants.items():
            good &= found[name] == value
        names = found["name"]
        good &= (names[:, -1] == 0) & (names[:, :-1] != 0).all(axis=1)
        if self.kind is ValueKind.BOOL:
            good &= found["read"] <= 1
            if self.settable:
                good &= found["written"] <= 1
        return good

    def encode(
        self,
        names: npt.NDArray[np.uint8],
        data_type: DataType,
        times: Times,
        qualities: npt.NDArray[np.integer[Any]],
        read: npt.NDArray[Any],
    ) -> list[bytes]:
        """Encode many frames of this layout, of an attribute without a set value.

        :param names: bytes of the attributes' names, shape (name_size,) or (n, name_size)
        :param times: nanoseconds since the epoch
        :raises CdrError: a time does not fit the 32 bits of its seconds
        """
        block = np.zeros(len(times), self.dtype)
        for field, value in self.constants.items():
            block[field] = value
        block["name"][:, :-1] = names
        if self.idl == IDL:
            block["data_type"] = data_type
        block["quality"], block["read"] = qualities, read
        seconds, rest = np.divmod(times, 1_000_000_000)
        if len(seconds) and max(seconds.max(), ~seconds.min()) >= 2**31:
            raise CdrError("a time beyond 2038")
        block["sec"], block["usec"], block["nsec"] = seconds, rest // 1000, rest % 1000
        block_bytes, size = block.tobytes(), self.dtype.itemsize
        return [block_bytes[at : at + size] for at in range(0, len(block_bytes), size)]


def layout_of(topic: Topic, value: AttributeValue, little: bool) -> FrameLayout | None:
    """The layout of the frame of a value, if it is one number in the newest form of this topic."""
    if value.kind not in DTYPES or value.format is not Format.SCALAR or value.errors or value.r_dim != ONE:
        return None
    settable = value.w_dim == ONE
    if not isinstance(value.content, np.ndarray) or len(value.content) != (2 if settable else 1):
        return None
    idl = value_idl(topic)
    if (not settable and value.w_dim != NO_DIM) or (idl == IDL) is (value.data_type is None):
        return None
    return FrameLayout(little, idl, value.kind, settable, len(value.name))


def value_idl(topic: Topic) -> int:
    """Newest IDL version of values on a topic: 5 or 4."""
    return IDL if topic.idl == IDL or topic.event in (EventType.ALARM, EventType.QUALITY) else 4


class ScalarEncoder:
    """Encodes events of one attribute, with one number each (and one set value).

    :param name: name of the attribute, as its device spells it
    :raises CdrError: values of this type are no numbers, or the topic carries no values
    """

    def __init__(
        self, topic: Topic, name: str, data_type: DataType, settable: bool = False, little: bool = True
    ) -> None:
        kind = KIND_OF[data_type]
        if kind not in DTYPES:
            raise CdrError(f"{data_type.name} is no number")
        self.topic, self.name, self.data_type = topic, name, data_type
        self.layout = FrameLayout(little, value_idl(topic), kind, settable, len(name))
        count = self.layout.count
        sample = write_data(topic, self._value(0, Quality.VALID, (0,) * count), little)
        at, end = self.layout.quality_at, self.layout.dtype.fields["name_size"][1]  # type: ignore[index]
        gap = at - _VALUES_AT - count * DTYPES[kind].itemsize
        self._head, self._tail, self._constant = sample[:_VALUES_AT], sample[end:], sample[at + 4 : end - 12]
        code = f"{_VALUES_AT}s{count}{STRUCT_CODES[kind]}{gap}xI{len(self._constant)}siii{len(self._tail)}s"
        self._struct = struct.Struct(("<" if little else ">") + code)
        self._first = [topic.encode(), LITTLE if little else BIG]

    def __repr__(self) -> str:
        return f"<ScalarEncoder {self.data_type.name} for {self.topic}>"

    def frames(self, ctr: int, time: int, quality: Quality, *numbers: float) -> list[bytes]:
        """The four frames of an event.

        :param time: nanoseconds since the epoch
        :param numbers: the read value, and the set value of a settable attribute
        :raises CdrError: a number does not fit its type, or there are too few or too many
        """
        return [*self._first, usual_call(ctr, False, self.layout.little), self.data(time, quality, *numbers)]

    def data(self, time: int, quality: Quality, *numbers: float) -> bytes:
        """The fourth frame; as :meth:`frames`."""
        seconds, rest = divmod(time, 1_000_000_000)
        if self.layout.kind is not ValueKind.BOOL or all(number in (0, 1) for number in numbers):
            try:
                return self._struct.pack(
                    self._head, *numbers, quality, self._constant, seconds, rest // 1000, rest % 1000, self._tail
                )
            except (struct.error, OverflowError):
                pass
        if len(numbers) != self.layout.count:
            raise CdrError(f"{len(numbers)} numbers for {self!r}")
        # other types of numbers, or invalid ones: the general encoder converts or raises
        return write_data(self.topic, self._value(time, quality, numbers), self.layout.little)

    def _value(self, time: int, quality: Quality, numbers: Sequence[float]) -> AttributeValue:
        w_dim = ONE if self.layout.settable else NO_DIM
        content = np.asarray(numbers)
        data_type = self.data_type if self.layout.idl == IDL else None
        return AttributeValue(
            self.name, self.layout.kind, content, time, quality, data_type=data_type, r_dim=ONE, w_dim=w_dim
        )

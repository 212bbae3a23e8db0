"""Format of records in a log of Tango events, which recorders write and event sources serve, and their topics. Pure.

A record is a head of fixed size, followed by the frames as received, one after the other. Numbers are little endian:

========= ======= ============ ================================================================================
at octet  type    field        meaning
========= ======= ============ ================================================================================
0         4 s     magic        ``MTGO``
4         u8      version      1
5         u8      kind         :class:`RecordKind`
6         u8      cause        :class:`GapCause` of a gap; else 0
7         u8      frames       number of frames: 0, 3 or 4
8         i64     received     when it arrived, nanoseconds since the epoch, by the clock of the writer
16        u32     ctr          counter of the event in its third frame; 0: none
20        u32     first        of a gap: its first counter; of a restart: the last counter before it
24        u32     last         of a gap: its last counter; of a restart: the first counter after it
28        i64     count        of a gap: number of lost events; -1: unknown
36        4 u32   sizes        octets of each frame: topic, byte order, call info, data; 0: no such frame
========= ======= ============ ================================================================================

A topic is ``<prefix>.<host>.<domain>.<family>.<member>.<attribute>.<event>``, the parts percent-encoded, so that each
is one token of a NATS subject, in lower case as Tango's topics are; ``-`` stands for no attribute. In the place of the
event, gaps have ``gap``, restarts ``restart``, and states of devices ``heartbeat``, so that readers of these need not
read all values; the first frame of a gap contains the event. Records about the writer itself have the topic
``<prefix>.<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.errors import MamaError

from ..events.event_codec import read_except
from ..events.frames import BIG
from ..giop.cdr import CdrError
from ..topics import HEARTBEAT, Topic
from ..types import EVENT_NAMES, DevError, EventType

MAGIC, VERSION = b"MTGO", 1
PREFIX = "tango"  #: one token
NO_ATTRIBUTE = "-"  #: in topics, in the place of an attribute
UNKNOWN_COUNT = -1
GAP, RESTART = "gap", "restart"


class RecordKind(IntEnum):
    """Kind of a record. Type, data and errors of an event are in its frames."""

    EVENT = 1  #: an event, with its frames as received
    INITIAL = 2  #: the value that was read when the subscription began, in frames of the reader
    RESUBSCRIBED = 3  #: the value that was read after a reconnection, in frames of the reader
    PUSH = 4  #: for an event source to send; the frames that it sends except for the counter
    GAP = 5  #: events were lost before the next one of this topic
    RESTART = 6  #: the counter of this topic started again; the number of lost events is unknown
    ERROR = 7  #: of the subscription, not of the attribute; the fourth frame has the errors
    ONLINE = 8  #: heartbeats of a device's server arrive
    OFFLINE = 9  #: they do not; the fourth frame has the reason
    STARTED = 10  #: the writer started
    STOPPED = 11  #: the writer stopped in order
    STATE = 12  #: the writer's state, so that a reader need not start at the beginning of the log
    SUSPECT = 13  #: heartbeats arrive, but the last event of an attribute was INVALID or an error


class GapCause(IntEnum):
    """Why events are missing in the log."""

    NONE = 0
    WAY = 1  #: lost between server and recorder, as the counters show
    AWAY = 2  #: sent while no recorder ran, as the counters show
    BUFFER = 3  #: dropped by the recorder's full queue while the log could not be reached
    REFUSED = 4  #: the log refused their records


class BadEventRecord(MamaError):
    """A payload that is no record of Tango events."""


_HEAD = np.dtype(
    [
        ("magic", "S4"), ("version", "u1"), ("kind", "u1"), ("cause", "u1"), ("frames", "u1"), ("received", "<i8"),
        ("ctr", "<u4"), ("first", "<u4"), ("last", "<u4"), ("count", "<i8"), ("sizes", "<u4", (4,)),
    ]
)  # fmt: skip
HEAD_SIZE = _HEAD.itemsize
_KINDS = np.zeros(256, np.bool_)
_KINDS[list(RecordKind)] = True

#: The states of a device, best first.
DEVICE_STATES = (RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.OFFLINE)
Numbers = npt.NDArray[Any] | int


class GapNumbers(NamedTuple):
    """Numbers of the record of a gap or restart; see the table of the module."""

    first: int
    last: int
    size: int
    cause: int


@dataclass(frozen=True, slots=True)
class RecordFrames:
    """The four frames of ``n`` records, as columns; ``b""`` where a record has none.

    :ivar topics: as sent: ``tango://host/device/attribute#dbase=no.idl5_change``
    :ivar orders: one octet each
    """

    topics: Sequence[bytes]
    orders: Sequence[bytes]
    calls: Sequence[bytes]
    datas: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.topics)

    def columns(self) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
        """The four columns, in the order of the frames."""
        return self.topics, self.orders, self.calls, self.datas

    @classmethod
    def of(cls, rows: Sequence[Sequence[bytes]]) -> RecordFrames:
        """From the frames of each record: none, or up to four."""
        full = [(*row, *(b"",) * (4 - len(row))) for row in rows]
        return cls(*([row[i] for row in full] for i in range(4)))


@dataclass(frozen=True, slots=True)
class RecordHeads:
    """The head fields of ``n`` records: arrays, or one number for all.

    :ivar kind: :class:`RecordKind`
    :ivar received: nanoseconds since the epoch
    :ivar first: and ``last``, ``count``, ``cause``: see the table of the module
    """

    kind: Numbers
    received: Numbers
    ctr: Numbers = 0
    first: Numbers = 0
    last: Numbers = 0
    count: Numbers = 0
    cause: Numbers = 0


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """``n`` decoded records; in rows that are ``bad`` all numbers are 0 and all frames empty.

    :ivar frames: copies, not views of the payloads
    """

    kind: npt.NDArray[np.uint8]
    cause: npt.NDArray[np.uint8]
    received: npt.NDArray[np.int64]
    ctr: npt.NDArray[np.uint32]
    first: npt.NDArray[np.uint32]
    last: npt.NDArray[np.uint32]
    count: npt.NDArray[np.int64]
    frames: RecordFrames
    bad: dict[int, BadEventRecord] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)


# --- payloads ----------------------------------------------------------------------------------------------


def encode(heads: RecordHeads, frames: RecordFrames) -> pa.Array:
    """The payloads of records: binary, or large_binary if they have 2 GiB together.

    :raises ValueError: the columns differ in length, or a frame has 4 GiB
    """
    n = len(frames)
    block = np.zeros(n, _HEAD)
    block["magic"], block["version"] = MAGIC, VERSION
    for name in ("kind", "cause", "received", "ctr", "first", "last", "count"):
        block[name] = getattr(heads, name)
    sizes = np.array([list(map(len, column)) for column in frames.columns()], np.int64).reshape(4, n).T
    if sizes.size and sizes.max() >= 2**32:
        raise ValueError(f"a frame of {sizes.max()} octets")
    block["sizes"] = sizes
    block["frames"] = np.where(sizes[:, 3] > 0, 4, np.where(sizes[:, 0] > 0, 3, 0))
    octets = block.tobytes()
    parts: list[Any] = [b""] * (5 * n)
    parts[0::5] = [octets[at : at + HEAD_SIZE] for at in range(0, len(octets), HEAD_SIZE)]
    for number, column in enumerate(frames.columns(), 1):
        parts[number::5] = column
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes.sum(axis=1) + HEAD_SIZE, out=offsets[1:])
    wide = int(offsets[-1]) >= 2**31
    places = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    kind = pa.large_binary() if wide else pa.binary()
    return pa.Array.from_buffers(kind, n, [None, places, pa.py_buffer(b"".join(parts))])


def encode_one(kind: RecordKind, received: int, frames: Sequence[bytes] = (), **numbers: int) -> bytes:
    """The payload of one record.

    :param numbers: other fields of :class:`RecordHeads`
    """
    payload: bytes = encode(RecordHeads(kind, received, **numbers), RecordFrames.of([frames]))[0].as_py()
    return payload


def decode(payloads: pa.Array) -> DecodedRecords:
    """Decode payloads (binary or large_binary). Raises nothing: payloads that are no records are listed in ``bad``."""
    n = len(payloads)
    wide = pa.types.is_large_binary(payloads.type)
    _, places, buffer = payloads.buffers()
    if n == 0 or buffer is None:
        buffer, starts, ends = b"", np.zeros(n, np.int64), np.zeros(n, np.int64)
    else:
        offsets = np.frombuffer(places, np.int64 if wide else np.int32).astype(np.int64)
        offsets = offsets[payloads.offset : payloads.offset + n + 1]
        starts, ends = offsets[:-1], offsets[1:]
        if payloads.null_count:
            ends = np.where(payloads.is_valid().to_numpy(zero_copy_only=False), ends, starts)
    bad: dict[int, BadEventRecord] = {}
    heads = _heads(buffer, starts, ends)
    sizes = heads["sizes"].astype(np.int64)
    good = _check(heads, sizes, ends - starts, bad)
    if bad:
        heads[~good] = np.zeros((), _HEAD)
        sizes[~good] = 0
    columns = []
    octets, at = memoryview(buffer), starts + HEAD_SIZE
    for number in range(4):
        end = at + sizes[:, number]
        columns.append([bytes(octets[a:b]) for a, b in zip(at.tolist(), end.tolist(), strict=True)])
        at = end
    names = ("kind", "cause", "received", "ctr", "first", "last", "count")
    numbers = {name: np.ascontiguousarray(heads[name]) for name in names}
    return DecodedRecords(**numbers, frames=RecordFrames(*columns), bad=bad)


def _heads(buffer: Any, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The heads of all payloads; zeros where the payload is shorter than a head."""
    whole = ends - starts >= HEAD_SIZE
    heads = np.zeros(len(starts), _HEAD)
    if whole.any():
        octets = np.frombuffer(buffer, np.uint8)
        heads[whole] = octets[starts[whole, None] + np.arange(HEAD_SIZE)].view(_HEAD).ravel()
    return heads


def _check(
    heads: npt.NDArray[Any],
    sizes: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    bad: dict[int, BadEventRecord],
) -> npt.NDArray[np.bool_]:
    """Which payloads are records; reasons why the others are not are added to ``bad``."""
    count = heads["frames"]
    present = (sizes > 0).sum(axis=1)
    checks = (
        (lengths >= HEAD_SIZE, "it is shorter than a head"),
        (heads["magic"] == MAGIC, f"it does not begin with {MAGIC.decode()}"),
        (heads["version"] == VERSION, f"its version is not {VERSION}"),
        (_KINDS[heads["kind"]], "its kind is unknown"),
        (sizes.sum(axis=1) + HEAD_SIZE == lengths, "its frames are not as long as it says"),
        (np.isin(count, (0, 3, 4)) & (present <= count), "its frames are not as many as it says"),
    )
    good = np.ones(len(heads), np.bool_)
    for passed, reason in checks:
        for row in np.flatnonzero(good & ~passed).tolist():
            bad[row] = BadEventRecord(f"no record of Tango events: {reason}")
        good &= passed
    return good


# --- topics ------------------------------------------------------------------------------------------------


class RecordTopic(NamedTuple):
    """The parsed topic of a record.

    :ivar tango_host: of the database, or host and port of a server without one
    :ivar event: as in topics of Tango without ``idl5_`` (``change``); or ``heartbeat``, ``gap``, ``restart``
    """

    prefix: str
    tango_host: str
    device: str
    attribute: str | None
    event: str

    @property
    def event_type(self) -> EventType | None:
        """None for ``heartbeat``, ``gap`` and ``restart``."""
        return EVENT_NAMES.get(self.event)


@lru_cache(16384)
def record_topic(topic: Topic, prefix: str = PREFIX, kind: RecordKind = RecordKind.EVENT) -> str:
    """The topic in the log of records of this topic of Tango.

    :param prefix: one token of the middleware's topics
    """
    event = HEARTBEAT if topic.event is None else topic.event.wire_name
    if kind in (RecordKind.GAP, RecordKind.RESTART):
        event = GAP if kind is RecordKind.GAP else RESTART
    names = [topic.tango_host, *topic.device.split("/")]
    attribute = NO_ATTRIBUTE if topic.attribute is None else _token(topic.attribute)
    return ".".join([prefix, *map(_token, names), attribute, event])


@lru_cache(16384)
def parse_record_topic(text: str) -> RecordTopic:
    """The inverse of :func:`record_topic`; whether the server has a database is only in the frames.

    :raises BadEventRecord: no topic of a record of Tango events
    """
    parts = text.rsplit(".", 6)
    if len(parts) < 7:
        parts = [""] * 7
    prefix, host, domain, family, member, attribute, event = parts
    if not host or (event not in (HEARTBEAT, GAP, RESTART) and event not in EVENT_NAMES):
        raise BadEventRecord(f"no topic of a record of Tango events: {text[:200]!r}")
    device = "/".join(map(unquote, (domain, family, member)))
    name = None if attribute == NO_ATTRIBUTE else unquote(attribute)
    return RecordTopic(prefix, unquote(host), device, name, event)


def writer_topic(name: str, prefix: str = PREFIX) -> str:
    """Topic of the records about a writer: STARTED, STOPPED, STATE."""
    return f"{prefix}.{_token(name)}"


def device_topic(tango_host: str, device: str, dbase: bool) -> Topic:
    """First frame of records of a device's state: as if the device itself sent heartbeats."""
    return Topic(tango_host, device, None, None, dbase)


def errors_of(recorded: DecodedRecords, row: int) -> tuple[DevError, ...]:
    """Errors in a record of a device's state, or of kind ERROR; empty if it has none.

    :raises BadEventRecord: they cannot be read
    """
    data = recorded.frames.datas[row]
    if not data:
        return ()
    try:
        return read_except(data, recorded.frames.orders[row] != BIG)
    except CdrError as error:
        raise BadEventRecord(f"no errors in a record: {error}") from None


def _token(part: str) -> str:
    """One token of a NATS subject, different from :data:`NO_ATTRIBUTE`."""
    return quote(part.lower(), safe=":").replace(".", "%2E").replace("~", "%7E") if part != NO_ATTRIBUTE else "%2D"

"""Records that recorders and ``mamapub`` write to a log of Tango events: their format and topics. Pure.

A record is a head of fixed size, followed by the frames of the event, in order. Numbers are little endian:

| at byte | type | field | meaning |
|---|---|---|---|
| 0 | 4 bytes | magic | ``MTGO`` |
| 4 | u8 | version | 1 |
| 5 | u8 | kind | event 1, initial 2, resubscribed 3, push 4, gap 5, restart 6, error 7, online 8, offline 9, \
started 10, stopped 11, state 12, suspect 13, checked 14 |
| 6 | u8 | cause | of a gap: lost on the way 1, no recorder ran 2, buffer full 3, refused by the log 4; else 0 |
| 7 | u8 | frames | number of frames: 0, 3 or 4 |
| 8 | i64 | received | time of arrival by the clock of the writer, ns since the epoch; of a push its ``time``, or 0 |
| 16 | u32 | ctr | counter of the event in its third frame; 0: none |
| 20 | u32 | first | first counter of a gap; last counter before a restart; first counter of summed-up errors |
| 24 | u32 | last | last counter of a gap; first counter after a restart; last counter of summed-up errors |
| 28 | i64 | count | number of lost events of a gap, -1: unknown; number of further errors that an error sums up |
| 36 | 4 u32 | sizes | bytes of each frame: topic, byte order, call info, data; 0: empty or none |
| 52 | | | the frames as received; of a push, as they will be sent, without the counter |

The topic of a record is ``<prefix>.<host>.<domain>.<family>.<member>.<attribute>.<event>`` in lower case, as in Tango.
Parts are percent-encoded, so that each is one token of a NATS subject; ``-`` stands for no attribute. Instead of an
event type, GAP has ``gap``, RESTART ``restart``, and ONLINE, OFFLINE, SUSPECT ``heartbeat``: readers can select these;
a gap's first frame is the Tango topic of its events, its others are empty. Records about the writer itself have
the topic ``<prefix>.<name>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from mama_spark.contracts.errors import MamaError
from mama_spark.contracts.message import read_heads

from ..events.event_codec import BIG, read_except
from ..giop.cdr import CdrError
from ..topics import HEARTBEAT, Topic
from ..types import EVENT_NAMES, DevError

MAGIC, VERSION = b"MTGO", 1
PREFIX = "tango"  #: default prefix of topics; one token
NO_ATTRIBUTE = "-"  #: stands for no attribute in topics
UNKNOWN_COUNT = -1
GAP, RESTART = "gap", "restart"


class RecordKind(IntEnum):
    """Kind of a record. The frames contain event type, data and errors."""

    EVENT = 1  #: an event, with its frames as received
    INITIAL = 2  #: the value that was read after the first negotiation; the recorder made the frames
    RESUBSCRIBED = 3  #: the value that was read after a reconnection; the recorder made the frames
    PUSH = 4  #: a value that an event source is to push; the frames have no counter
    GAP = 5  #: events of this topic were lost
    RESTART = 6  #: the counter of this topic started again; the number of lost events is unknown
    ERROR = 7  #: the subscription failed; the fourth frame contains the errors
    ONLINE = 8  #: heartbeats of a device's server arrive
    OFFLINE = 9  #: heartbeats are missing; the fourth frame contains the error
    STARTED = 10  #: the writer started
    STOPPED = 11  #: the writer stopped normally
    STATE = 12  #: state of the writer, so that a recorder or reader need not read the log from its start
    SUSPECT = 13  #: heartbeats arrive, and the last event of an attribute was INVALID or carried errors
    CHECKED = 14  #: the value that was read in a check of losses, since it differs; the recorder made the frames


class GapCause(IntEnum):
    """Reason why events are missing in the log."""

    NONE = 0
    WAY = 1  #: lost between server and recorder; the counters show it
    AWAY = 2  #: sent while no recorder ran; the counters show it
    BUFFER = 3  #: dropped by the full queue of the recorder
    REFUSED = 4  #: the log rejected their records


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

#: Kinds of records of device states, best state first.
DEVICE_STATES = (RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.OFFLINE)
Numbers = npt.NDArray[Any] | int


class GapNumbers(NamedTuple):
    """Fields of the record of a gap or restart; see the table of the module."""

    first: int
    last: int
    size: int
    cause: int


@dataclass(frozen=True, slots=True)
class RecordFrames:
    """The four frames of ``n`` records, as columns of length n; ``b""`` if a record has no such frame.

    :ivar topics: Tango topics such as ``tango://host/device/attribute#dbase=no.idl5_change``
    :ivar orders: byte orders, one byte each
    :ivar calls: call infos (TG-11)
    :ivar datas: data (TG-12) or errors (TG-18)
    """

    topics: Sequence[bytes]
    orders: Sequence[bytes]
    calls: Sequence[bytes]
    datas: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.topics)

    def columns(self) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
        return self.topics, self.orders, self.calls, self.datas


@dataclass(frozen=True, slots=True)
class RecordHeads:
    """Fields of the heads of ``n`` records, each an array of shape (n,) or one number for all; see the table of the
    module."""

    kind: Numbers
    received: Numbers
    ctr: Numbers = 0
    first: Numbers = 0
    last: Numbers = 0
    count: Numbers = 0
    cause: Numbers = 0


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """``n`` decoded records, as arrays of shape (n,). In rows listed in ``bad`` (row -> error), numbers are 0 and
    frames are empty; other ``frames`` are copies, not views of the payloads."""

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


def encode(heads: RecordHeads, frames: RecordFrames) -> pa.Array:
    """Encode records; returns their payloads as binary, or as large_binary if they have 2 GiB or more together.

    :raises ValueError: the columns differ in length, or a frame has 4 GiB or more
    """
    n = len(frames)
    block = np.zeros(n, _HEAD)
    block["magic"], block["version"] = MAGIC, VERSION
    for name in ("kind", "cause", "received", "ctr", "first", "last", "count"):
        block[name] = getattr(heads, name)
    sizes = np.array([list(map(len, column)) for column in frames.columns()], np.int64).reshape(4, n).T
    if sizes.size and sizes.max() >= 2**32:
        raise ValueError(f"a frame of {sizes.max()} bytes; the limit is 4 GiB")
    block["sizes"] = sizes
    block["frames"] = np.where(sizes[:, 3] > 0, 4, np.where(sizes[:, 0] > 0, 3, 0))
    head_bytes = block.tobytes()
    parts: list[Any] = [b""] * (5 * n)
    parts[0::5] = [head_bytes[at : at + HEAD_SIZE] for at in range(0, len(head_bytes), HEAD_SIZE)]
    for number, column in enumerate(frames.columns(), 1):
        parts[number::5] = column
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes.sum(axis=1) + HEAD_SIZE, out=offsets[1:])
    wide = int(offsets[-1]) >= 2**31
    places = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    kind = pa.large_binary() if wide else pa.binary()
    return pa.Array.from_buffers(kind, n, [None, places, pa.py_buffer(b"".join(parts))])


def decode(payloads: pa.Array) -> DecodedRecords:
    """Decode payloads (binary or large_binary). ``bad`` lists payloads that are no records; nothing is raised."""
    bad: dict[int, BadEventRecord] = {}
    buffer, starts, ends, heads = read_heads(payloads, _HEAD)
    sizes = heads["sizes"].astype(np.int64)
    good = _check(heads, sizes, ends - starts, bad)
    if bad:
        heads[~good] = np.zeros((), _HEAD)
        sizes[~good] = 0
    columns = []
    record_bytes, at = memoryview(buffer), starts + HEAD_SIZE
    for number in range(4):
        end = at + sizes[:, number]
        columns.append([bytes(record_bytes[a:b]) for a, b in zip(at.tolist(), end.tolist(), strict=True)])
        at = end
    names = ("kind", "cause", "received", "ctr", "first", "last", "count")
    numbers = {name: np.ascontiguousarray(heads[name]) for name in names}
    return DecodedRecords(**numbers, frames=RecordFrames(*columns), bad=bad)


def _check(
    heads: npt.NDArray[Any],
    sizes: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    bad: dict[int, BadEventRecord],
) -> npt.NDArray[np.bool_]:
    """Flags of the payloads that are records, shape (n,); adds the errors of the others to ``bad``."""
    count = heads["frames"]
    present = (sizes > 0).sum(axis=1)
    checks = (
        (lengths >= HEAD_SIZE, "it is shorter than a head"),
        (heads["magic"] == MAGIC, f"it does not begin with {MAGIC.decode()}"),
        (heads["version"] == VERSION, f"its version is not {VERSION}"),
        (_KINDS[heads["kind"]], "its kind is unknown"),
        (sizes.sum(axis=1) + HEAD_SIZE == lengths, "its length differs from the sizes of its frames"),
        (np.isin(count, (0, 3, 4)) & (present <= count), "the number of its frames differs from the sizes"),
    )
    good = np.ones(len(heads), np.bool_)
    for passed, reason in checks:
        for row in np.flatnonzero(good & ~passed).tolist():
            bad[row] = BadEventRecord(f"the payload is no record of Tango events: {reason}")
        good &= passed
    return good


class RecordTopic(NamedTuple):
    """The parsed topic of a record. ``tango_host``: ``host:port`` of the database, or without one of the server;
    ``event``: name as in Tango topics, without ``idl5_``; or ``heartbeat``, ``gap``, ``restart``."""

    prefix: str
    tango_host: str
    device: str
    attribute: str | None
    event: str


@lru_cache(16384)
def record_topic(topic: Topic, prefix: str = PREFIX, kind: RecordKind = RecordKind.EVENT) -> str:
    """Topic in the log of the records of a Tango topic."""
    event = HEARTBEAT if topic.event is None else topic.event.wire_name
    if kind in (RecordKind.GAP, RecordKind.RESTART):
        event = GAP if kind is RecordKind.GAP else RESTART
    names = [topic.tango_host, *topic.device.split("/")]
    attribute = NO_ATTRIBUTE if topic.attribute is None else _token(topic.attribute)
    return ".".join([prefix, *map(_token, names), attribute, event])


@lru_cache(16384)
def parse_record_topic(text: str) -> RecordTopic:
    """The inverse of :func:`record_topic`. Only the frames show whether the server has a database.

    :raises BadEventRecord: the text is no topic of a record of Tango events
    """
    parts = text.rsplit(".", 6)
    if len(parts) < 7:
        parts = [""] * 7
    prefix, host, domain, family, member, attribute, event = parts
    if not host or (event not in (HEARTBEAT, GAP, RESTART) and event not in EVENT_NAMES):
        raise BadEventRecord(f"invalid topic of a record of Tango events: {text[:200]!r}")
    device = "/".join(map(unquote, (domain, family, member)))
    name = None if attribute == NO_ATTRIBUTE else unquote(attribute)
    return RecordTopic(prefix, unquote(host), device, name, event)


def writer_topic(name: str, prefix: str = PREFIX) -> str:
    """Topic of the records about a writer: STARTED, STOPPED, STATE."""
    return f"{prefix}.{_token(name)}"


def device_topic(tango_host: str, device: str, dbase: bool) -> Topic:
    """First frame of the records of a device's state: a heartbeat topic with the name of the device."""
    return Topic(tango_host, device, None, None, dbase)


def errors_of(recorded: DecodedRecords, row: int) -> tuple[DevError, ...]:
    """Errors in a record of a device's state or of kind ERROR; empty if it has none.

    :raises BadEventRecord: the fourth frame cannot be decoded
    """
    data = recorded.frames.datas[row]
    if not data:
        return ()
    try:
        return read_except(data, recorded.frames.orders[row] != BIG)
    except CdrError as error:
        raise BadEventRecord(f"the errors of a record cannot be decoded: {error}") from None


def _token(part: str) -> str:
    """Encode a part as one token of a NATS subject other than :data:`NO_ATTRIBUTE`."""
    return quote(part.lower(), safe=":").replace(".", "%2E").replace("~", "%7E") if part != NO_ATTRIBUTE else "%2D"


_VERSION = 1
_TOPICS_IN_PART = 4000  #: most topics in one record
_EMPTY: Mapping[str, Any] = {"devices": [], "hosts": {}, "owed": []}  #: in all but the first one


def state_parts(counters: Mapping[bytes, int], more: Mapping[str, Any]) -> Iterator[bytes]:
    """Contents of the records: ``counters`` by Tango topic, and ``more`` fields, which the first record has."""
    topics = list(counters.items())
    of = max(1, -(-len(topics) // _TOPICS_IN_PART))
    for number in range(of):
        part = topics[number * _TOPICS_IN_PART : (number + 1) * _TOPICS_IN_PART]
        named = {topic.decode("latin-1"): ctr for topic, ctr in part}
        state = {"v": _VERSION, "part": number, "of": of, "counters": named, **(_EMPTY if number else more)}
        yield orjson.dumps(state)


def newest_state(parts: Sequence[bytes]) -> tuple[dict[str, Any], int, int] | None:
    """The newest complete state among the contents of a recorder's STATE records, which are in order, and the indices
    of its first and last record; None if none is complete."""
    open_parts: list[dict[str, Any]] = []
    newest: tuple[dict[str, Any], int, int] | None = None
    for at, data in enumerate(parts):
        try:
            part = orjson.loads(data)
            number, of, counters = int(part["part"]), int(part["of"]), dict(part["counters"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            open_parts = []
            continue
        if part.get("v") != _VERSION or number != len(open_parts):
            open_parts = []
        if number == len(open_parts):
            open_parts.append({**part, "counters": counters})
        if len(open_parts) == of:
            counters = {k: v for p in open_parts for k, v in p["counters"].items()}
            newest = {**open_parts[0], "counters": counters}, at - of + 1, at
            open_parts = []
    return newest

"""Records that recorders write to a log of OpenMAMA messages: their format and topics. Pure.

A record is a head of fixed size and what follows it: the frame as it came from the network. Numbers are little endian:

========= ======= ============ ================================================================================
at byte  type    field        meaning
========= ======= ============ ================================================================================
0         4 s     magic        ``MOMA``
4         u8      version      1
5         u8      kind         :class:`MamaRecordKind`
6         u8      framing      1 ``oz``, 2 ``zmq``; 0 where no frame follows
7         u8      cause        :class:`MamaGapCause` of a gap; :class:`.naming.PeerPresence` of a peer; else 0
8         i64     received     time of arrival by the clock of the recorder, nanoseconds since the epoch
16        u64     sender       MamaSenderId of a gap; else 0
24        u32     first        first number (MdSeqNum) that is missing; else 0
28        u32     last         last number that is missing; else 0
32        u32     payload_at   where the OMNM payload begins in the record; 0: there is none
36        u32     reserved     0
========= ======= ============ ================================================================================

The topic of a record is ``<prefix>.`` and the topic of the message, whose parts are percent-encoded, so that each is
one token of a NATS subject. What is about no topic has a part that begins with ``_`` behind the prefix:
``_dictionary.<source>``, ``_peers``, ``_recorder.<name>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.contracts.message import Int64s, MessageBatch, at_each_byte, read_heads
from mama_spark.mama.messages.omnm_columns import PADDING

MAGIC, VERSION = b"MOMA", 1
PREFIX = "mama"  #: default prefix of topics; one token
FRAMING_NUMBERS = {"oz": 1, "zmq": 2}
FRAMING_NAMES = {number: name for name, number in FRAMING_NUMBERS.items()}
DICTIONARY, PEERS, RECORDER = "_dictionary", "_peers", "_recorder"

_HEAD = np.dtype(
    [
        ("magic", "S4"), ("version", "u1"), ("kind", "u1"), ("framing", "u1"), ("cause", "u1"), ("received", "<i8"),
        ("sender", "<u8"), ("first", "<u4"), ("last", "<u4"), ("payload_at", "<u4"), ("reserved", "<u4"),
    ]
)  # fmt: skip
HEAD_SIZE = _HEAD.itemsize
_EMPTY_HEAD = b"\xff" * HEAD_SIZE  #: no zeros: a decoder of frames looks for the ends of texts

Kinds = npt.NDArray[np.integer[Any]]


class MamaRecordKind(IntEnum):
    MESSAGE = 1  #: a message that was published
    IMAGE = 2  #: an answer to a subscription: the state of its topic
    RECAP = 3  #: an answer after a gap, of type RECAP
    REFUSAL = 4  #: an answer to a subscription with another status than OK
    GAP = 5  #: messages of a topic and sender are missing
    DICTIONARY = 6  #: the dictionary of a source
    TIMEOUT = 7  #: a subscription was not answered
    PEER = 8  #: a peer of the naming service came, fell silent or went; its naming frame
    STARTED = 9  #: the recorder began
    STOPPED = 10  #: the recorder ended in order


class MamaGapCause(IntEnum):
    """Why messages are missing in the log."""

    NONE = 0
    WAY = 1  #: lost between publisher and recorder; their numbers show it
    AWAY = 2  #: published while no recorder ran; their numbers show it
    REFUSED = 3  #: the log rejected their records


@dataclass(frozen=True, slots=True)
class MamaRecord:
    """One record to write; ``topic``: in the log; ``body``: the frame, or nothing."""

    kind: MamaRecordKind
    topic: str
    received: int
    body: bytes = b""
    framing: str = ""
    payload_at: int = 0
    cause: int = 0
    sender: int = 0
    first: int = 0
    last: int = 0

    def encode(self) -> bytes:
        at = HEAD_SIZE + self.payload_at if self.payload_at else 0
        framing = FRAMING_NUMBERS.get(self.framing, 0)
        numbers = (self.kind, framing, self.cause, self.received, self.sender, self.first, self.last, at, 0)
        return np.array((MAGIC, VERSION, *numbers), _HEAD).tobytes() + self.body


class FrameRecords:
    """Records of ``n`` frames, whose heads are filled in once the frames are decoded: they are copied once.

    :ivar data: the records, with padding behind them
    :ivar bounds: offsets of the beginnings, and of the end of the last one, shape (n + 1,)
    """

    def __init__(self, frames: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, frames), np.int64, len(frames)) + HEAD_SIZE
        self.bounds = np.concatenate(([0], np.cumsum(sizes)))
        parts = [b"", *frames]
        parts[-1] += bytes(PADDING)
        self.data = bytearray(_EMPTY_HEAD).join(parts)

    def filled(self, kinds: Kinds, framing: str, received: Int64s, payload_at: Int64s) -> pa.Array:
        """The records, binary, each as :meth:`MamaRecord.encode` makes it.

        :param kinds: :class:`MamaRecordKind` of each, shape (n,)
        :param received: nanoseconds since the epoch, shape (n,)
        :param payload_at: offset of the payload in each frame, shape (n,)
        """
        n = len(self.bounds) - 1
        heads = np.zeros(n, _HEAD)
        heads["magic"], heads["version"], heads["kind"] = MAGIC, VERSION, kinds
        heads["framing"], heads["received"] = FRAMING_NUMBERS[framing], received
        heads["payload_at"] = HEAD_SIZE + payload_at
        if n:
            at_each_byte(self.data, f"V{HEAD_SIZE}")[self.bounds[:-1]] = heads.view(f"V{HEAD_SIZE}")
        offsets = pa.py_buffer(self.bounds.astype(np.int32))
        return pa.Array.from_buffers(pa.binary(), n, [None, offsets, pa.py_buffer(self.data)])


@dataclass(frozen=True, slots=True)
class MamaRecords:
    """Payloads of ``n`` messages of a log, as columns of shape (n,).

    :ivar is_record: else any message, which may be OMNM itself
    :ivar heads: the fields of the heads, of zeros where ``is_record`` is False
    :ivar begins: offset of the OMNM payload in ``data``
    :ivar ends: offset of its end; ``begins`` where there is none
    :ivar bodies: offset of the bytes behind the head
    :ivar bad: message -> why it is no record although it begins like one
    """

    data: pa.Buffer | bytes
    is_record: npt.NDArray[np.bool_]
    heads: npt.NDArray[Any]
    begins: Int64s
    ends: Int64s
    bodies: Int64s
    bad: dict[int, str]

    def __len__(self) -> int:
        return len(self.begins)

    def body(self, row: int) -> bytes:
        return bytes(memoryview(self.data)[int(self.bodies[row]) : int(self.ends[row])])


def decode_records(payloads: pa.Array) -> MamaRecords:
    """The records that payloads of a log (binary, without nulls) hold."""
    data, begins, ends, heads = read_heads(payloads, _HEAD)
    is_record = heads["magic"] == MAGIC
    heads[~is_record] = 0
    sizes = ends - begins
    at = heads["payload_at"].astype(np.int64)
    known = (heads["version"] == VERSION) & np.isin(heads["kind"], list(MamaRecordKind))
    fits = (at == 0) | ((at >= HEAD_SIZE) & (at < sizes))
    bad = {
        row: "a record of another version or kind" if not known[row] else "the payload is not within the record"
        for row in np.flatnonzero(is_record & ~(known & fits)).tolist()
    }
    if bad:
        heads[list(bad)] = 0
        at[list(bad)] = 0
    has_payload = ~is_record | (at > 0)
    return MamaRecords(
        data, is_record, heads, np.where(has_payload, begins + at, ends), ends,
        np.where(is_record, begins + HEAD_SIZE, begins), bad,
    )  # fmt: skip


def record_topic(topic: str, prefix: str = PREFIX) -> str:
    return ".".join((prefix, *(quote(part, safe="!$&'()+,;=@~") or "%" for part in topic.split("."))))


def message_topic(topic: str) -> str:
    """The topic of the message from that of its record; empty for what is about no topic."""
    _, _, rest = topic.partition(".")
    if rest.split(".", 1)[0] in (DICTIONARY, PEERS, RECORDER):
        return ""
    return ".".join("" if part == "%" else unquote(part) for part in rest.split("."))


def messages(records: Sequence[MamaRecord]) -> MessageBatch:
    return MessageBatch.of([record.topic for record in records], [record.encode() for record in records])

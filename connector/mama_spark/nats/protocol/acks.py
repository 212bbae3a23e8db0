"""Decodes replies to publishes: successful acknowledgements as columns, all others one by one. Pure.

Consecutive acknowledgements of one connection nearly always have the same layout, because the token has a fixed width
and the sequence rarely gets one more digit. So a regular expression parses the first one of a run, and the rest of the
run is compared with it as a matrix of bytes. Where streams alternate, the frames of a read are first grouped by their
width, and each layout is compared in the same way: after the first run of a read that is short.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson

from mama_spark.contracts.errors import MamaError, OutcomeUnknown, PublishError
from mama_spark.contracts.message import Bools, Int64s

from .. import error_codes
from . import parser
from .frames import TOKEN_WIDTH

#: A shorter run does not pay for its numpy calls: the rest of the read is grouped by layouts.
_SHORT = 48
#: Acknowledgements that are compared with the first one of a run at once: what is compared beyond its end is lost work.
_COMPARED = 512
#: With more layouts or widths in one read, the rest is parsed by the regular expression.
_LAYOUTS = 16
#: JSON text that needs no decoding: valid UTF-8 without quotes, backslashes and control characters.
_TEXT = (
    rb"(?:[ !#-\[\]-\x7f]++|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*+"
)
_POWERS: Int64s = 10 ** np.arange(18, -1, -1, dtype=np.int64)


class AckError(MamaError):
    """A reply that is neither an acknowledgement nor an error."""

    may_have_landed = True


@dataclass(slots=True)
class AckColumns:
    """Successful acknowledgements of one stream (and domain); those of one layout in order of arrival."""

    stream: str
    domain: str | None = None
    tokens: list[Int64s] = field(default_factory=list)
    sequences: list[Int64s] = field(default_factory=list)
    duplicates: list[Bools] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(t) for t in self.tokens)


class BulkReader:
    """Parses the acknowledgements of one inbox, a whole read at a time.

    :param inbox: subject prefix of the replies, with its trailing dot; :data:`TOKEN_WIDTH` digits follow it
    """

    def __init__(self, inbox: bytes) -> None:
        self._start = b"MSG " + inbox
        self._clean = re.compile(
            re.escape(self._start)
            + b"(\\d{%d}) (\\d{1,18}) (\\d{1,9})\r\n" % TOKEN_WIDTH
            + rb'(\{"stream":"(%b)"(?:, ?"domain":"(%b)")?, ?"seq":(0|[1-9]\d{0,17})(,"duplicate": ?true)?\})'
            % (_TEXT, _TEXT)
            + b"\r\n"
        )

    def read(self, data: bytes, at: int, out: list[AckColumns]) -> int:
        """Take all clean acknowledgements from offset ``at`` on; returns the offset of the rest."""
        matrix, alternating = np.frombuffer(data, np.uint8), False
        while (m := self._clean.match(data, at)) is not None and len(m.group(4)) == int(m.group(3)):
            if alternating:
                return self._rest(data, self._mixed(data, matrix, at, out), out)
            taken = self._run(matrix, m, at, out)
            at += taken * (m.end() - at)
            alternating = taken < _SHORT
        return at

    def _run(self, data: npt.NDArray[np.uint8], m: re.Match[bytes], at: int, out: list[AckColumns]) -> int:
        width = m.end() - at
        rows = min((len(data) - at) // width, _COMPARED)
        good, numbers = _alike(data[at : at + rows * width].reshape(rows, width), m)
        taken = rows if good.all() else int(np.argmin(good))
        _take(out, m, numbers[:taken])
        return taken

    def _mixed(self, data: bytes, matrix: npt.NDArray[np.uint8], at: int, out: list[AckColumns]) -> int:
        """Layouts alternate: take the frames up to the first that is no clean acknowledgement."""
        ends = np.flatnonzero(matrix[at:] == 10)[1::2] + (at + 1)  # each frame is two lines
        starts = np.concatenate(([at], ends[:-1]))[: len(ends)]
        widths = ends - starts
        good = np.zeros(len(ends), np.bool_)
        found: list[tuple[re.Match[bytes], Int64s, npt.NDArray[np.uint8]]] = []
        for width in np.unique(widths)[:_LAYOUTS].tolist():
            rows = np.flatnonzero(widths == width)
            anywhere: npt.NDArray[np.void] = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
            table = anywhere[starts[rows]].view(np.uint8).reshape(-1, width)  # copies row by row, not byte by byte
            for _ in range(_LAYOUTS):
                m = self._clean.match(data, int(starts[rows[0]]))
                if m is None or m.end() != ends[rows[0]] or len(m.group(4)) != int(m.group(3)):
                    break
                same, numbers = _alike(table, m)
                good[rows[same]] = True
                found.append((m, rows[same], numbers[same]))
                rows, table = rows[~same], table[~same]
                if not len(rows):
                    break
        n = len(good) if good.all() else int(np.argmin(good))
        for m, rows, numbers in found:
            if taken := int(np.searchsorted(rows, n)):
                _take(out, m, numbers[:taken])
        return int(ends[n - 1]) if n else at

    def _rest(self, data: bytes, at: int, out: list[AckColumns]) -> int:
        """Parse the rest by the regular expression: it has too many layouts."""
        found: dict[tuple[bytes, bytes | None], tuple[list[int], list[int], list[bool]]] = {}
        match = self._clean.match
        while (m := match(data, at)) is not None:
            token, _, size, body, stream, domain, seq, duplicate = m.groups()
            if len(body) != int(size):
                break
            tokens, sequences, duplicates = found.setdefault((stream, domain), ([], [], []))
            tokens.append(int(token))
            sequences.append(int(seq))
            duplicates.append(duplicate is not None)
            at = m.end()
        for place, (tokens, sequences, duplicates) in found.items():
            columns = _columns(out, *place)
            columns.tokens.append(np.array(tokens, np.int64))
            columns.sequences.append(np.array(sequences, np.int64))
            columns.duplicates.append(np.array(duplicates, np.bool_))
        return at


def _alike(table: npt.NDArray[np.uint8], m: re.Match[bytes]) -> tuple[Bools, npt.NDArray[np.uint8]]:
    """The rows that differ from the first one in token and sequence only; and the digits of both."""
    at = m.start()
    token, seq = slice(m.start(1) - at, m.end(1) - at), slice(m.start(7) - at, m.end(7) - at)
    numbers = np.concatenate((table[:, token], table[:, seq]), axis=1) - 48
    rest = table.copy()
    rest[:, token] = rest[:, seq] = 0
    all_bytes, width = rest.reshape(-1), rest.shape[1]
    if (all_bytes[width:] == all_bytes[:-width]).all() and (numbers < 10).all():  # nearly always
        return np.ones(len(table), np.bool_), numbers
    good: Bools = (rest == rest[0]).all(axis=1) & (numbers < 10).all(axis=1)
    return good, numbers


def _take(out: list[AckColumns], m: re.Match[bytes], numbers: npt.NDArray[np.uint8]) -> None:
    digits = numbers.astype(np.int64)
    columns = _columns(out, m.group(5), m.group(6))
    columns.tokens.append(digits[:, :TOKEN_WIDTH] @ _POWERS[-TOKEN_WIDTH:])
    columns.sequences.append(digits[:, TOKEN_WIDTH:] @ _POWERS[-(digits.shape[1] - TOKEN_WIDTH) :])
    columns.duplicates.append(np.full(len(digits), m.group(8) is not None))


def _columns(out: list[AckColumns], stream: bytes, domain: bytes | None) -> AckColumns:
    place = stream.decode(), None if domain is None else domain.decode()
    for columns in out:
        if (columns.stream, columns.domain) == place:
            return columns
    out.append(AckColumns(*place))
    return out[-1]


# --- one by one ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PubAck:
    """A positive acknowledgement; ``count`` is that of a batch, 0 for a single message."""

    stream: str
    sequence: int
    duplicate: bool = False
    batch: str = ""
    count: int = 0
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class BatchMemberAccepted:
    """Member of an atomic batch: accepted, not stored yet."""


@dataclass(frozen=True, slots=True)
class FlowAck:
    """Fast ingest: everything up to batch sequence ``seq`` is stored; sent after each ``every`` messages."""

    seq: int
    every: int


@dataclass(frozen=True, slots=True)
class BatchGap:
    """Fast ingest: the server received ``seq`` instead of ``expected``."""

    expected: int
    seq: int


@dataclass(frozen=True, slots=True)
class BatchRejection:
    """Fast ingest: message ``seq`` was rejected with ``error``."""

    seq: int
    error: PublishError


Reply = PubAck | BatchMemberAccepted | FlowAck | BatchGap | BatchRejection | PublishError


def classify(frame: parser.Frame) -> Reply:
    """Outcome of a send, from its reply; :class:`OutcomeUnknown` if the reply cannot be read."""
    if is_nobody(frame):
        subject = next((value for name, value in frame.headers if name.lower() == "nats-subject"), "")
        return error_codes.no_responders(subject)
    if not frame.payload:
        status = frame.status
        return error_codes.from_reply(status, 0, frame.status_text or str(status)) if status else BatchMemberAccepted()
    try:
        return read_reply(frame.payload)
    except AckError as e:
        return OutcomeUnknown(f"unreadable acknowledgement: {e}")


def is_nobody(answer: parser.Frame) -> bool:
    """Whether nobody subscribes to the subject of the message that this answers."""
    return answer.status == error_codes.NO_RESPONDERS and not answer.payload


def read_reply(payload: bytes) -> Reply:
    """The JSON object of a reply. AckError: it is none."""
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError as e:
        raise AckError(f"not JSON ({e})") from None
    if not isinstance(body, dict):
        raise AckError("not an object")
    kind = body.get("type")
    if kind == "ack":
        return FlowAck(_number(body, "seq"), _number(body, "msgs"))
    if kind == "gap":
        return BatchGap(_number(body, "last_seq"), _number(body, "seq"))
    if kind == "err":
        return BatchRejection(_number(body, "seq"), _error(body.get("error")))
    if "error" in body:
        return _error(body["error"])
    stream = body.get("stream")
    if not isinstance(stream, str):
        raise AckError("no stream")
    batch, duplicate, domain = body.get("batch", ""), body.get("duplicate", False), body.get("domain")
    count = _number(body, "count") if "count" in body or batch else 0
    named = domain if isinstance(domain, str) else None
    return PubAck(stream, _number(body, "seq"), duplicate is True, str(batch), count, named)


def _number(body: dict[str, object], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise AckError(f"no {key}")
    return value


def _error(body: object) -> PublishError:
    if not isinstance(body, dict):
        raise AckError("error is not an object")
    return error_codes.from_reply(_number(body, "code"), _number(body, "err_code"), str(body.get("description", "")))

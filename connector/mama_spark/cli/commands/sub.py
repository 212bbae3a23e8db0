"""``mama sub PATTERN``: shows messages as they are stored, from now on or from a sequence.

The rows of packed messages are shown each by itself, with ``-o unpack=false`` packed.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ...console.arguments import add_transport, options
from ...contracts.backoff import Backoff
from ...contracts.errors import OptionError, Unavailable
from ...contracts.record_log import Bounds, Continuity, RecordLog, RecordLogBridge, Records, resume
from ...options import SubscribeOptions, command
from ...packing.chunked_unpack import unpack_chunks
from ...packing.json_text import as_json_column
from ...packing.unpacked import Unpacked
from ...packing.unpacker import unpacked_as_is
from ...publishing.window.reconnecting import OutageTimer
from ...registry import log_bridge, logs_to_read

#: Between two polls, the longer the less happens: on NATS every request makes an audit advisory, of which
#: discovery keeps a bounded number.
_POLL = Backoff(0.1, 1.0)

_USE = command("sub", "topics", "stream", "streams", "unpack", "wait_timeout")

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # without line feed and tab

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", help="topics, separated by commas; * stands for one part, > for all that follow")
    parser.add_argument("--from", dest="begin", default="now", metavar="WHERE", help="now, earliest or a sequence")
    parser.add_argument("--count", type=int, metavar="N", help="end after N messages")
    parser.add_argument("--json", action="store_true", help="a line of JSON each")
    parser.add_argument("--headers", action="store_true", help="show headers, too")
    add_transport(parser, "mamasub", positional=False)


def run(args: argparse.Namespace) -> int:
    """Follows until Ctrl-C, or until ``--count`` messages were shown."""
    o = options(args, SubscribeOptions, _USE, topics=args.pattern)
    begin = _begin(args.begin)
    for row in islice(_follow(o, begin), args.count):
        print(_json(row) if args.json else _text(row, args.headers), flush=True)
    return 0


def _begin(word: str) -> int | None:
    """First sequence to show; None = what comes from now on.

    :raises OptionError: neither a sequence nor one of the words
    """
    if word in ("now", "earliest"):
        return None if word == "now" else 1
    if not word.isdecimal():
        raise OptionError(f"--from wants now, earliest or a sequence, got {word!r}")
    return int(word)


class _Cursor:
    """The last sequence of one log that was shown, and when its record was stored, where that is known.

    :raises OptionError: the sequence to begin at is yet to come
    """

    def __init__(self, log: RecordLog, begin: int | None) -> None:
        bounds = log.bounds()
        if begin is not None and begin > bounds.last + 1:
            raise OptionError(f"--from {begin}: {log.name} ends at {bounds.last}; now shows what comes")
        self.name, self.identity = log.name, bounds.identity
        self.shown, self.time = (bounds.last, bounds.time) if begin is None else (begin - 1, None)

    def to(self, log: RecordLog) -> Bounds:
        """The log as it is now: the last one to show."""
        bounds = log.bounds_with(self.shown, self.identity)
        state, begin = resume(lambda: log, bounds, self.identity, self.shown + 1, self.time)
        if state is Continuity.RECREATED:
            print(f"mama: {self.name} was deleted and made again", file=sys.stderr)
        elif state.went_back:
            print(f"mama: {self.name} was restored from an older copy: going on at {begin}", file=sys.stderr)
        self.identity, self.shown = bounds.identity, begin - 1
        return bounds


def _follow(o: SubscribeOptions, begin: int | None) -> Iterator[Row]:
    """Rows as they come. Retries during an outage, up to ``waitTimeout``, unless nothing was reached at first.

    :raises Unavailable: it lasts longer
    """
    cursors: list[_Cursor] = []
    outage = OutageTimer(o.wait_timeout)
    while True:
        bridge = log_bridge(o, o.wait_timeout)
        try:
            bridge.open()
            if not cursors:
                cursors = [_Cursor(bridge.log(name), begin) for name in logs_to_read(o, bridge)]
            delays = _POLL.delays()
            while True:
                outage.succeeded()
                shown = [cursor.shown for cursor in cursors]
                yield from _new_rows(bridge, o, cursors)
                if shown != [cursor.shown for cursor in cursors]:
                    delays.reset()
                time.sleep(delays.next())
        except Unavailable as e:
            if not cursors:
                raise
            outage.wait(e)
        finally:
            bridge.close()


def _new_rows(bridge: RecordLogBridge, o: SubscribeOptions, cursors: list[_Cursor]) -> Iterator[Row]:
    for cursor in cursors:
        log = bridge.log(cursor.name)
        bounds = cursor.to(log)
        last, cursor.time = bounds.last, None
        if last > cursor.shown:
            for records in log.read(cursor.shown, last, o.topics):
                parts = unpack_chunks(records, as_json_column) if o.unpack else [(records, unpacked_as_is(records))]
                for some, found in parts:
                    for row in _rows(some, found, cursor.name):
                        yield row
                        cursor.shown = row["sequence"]
            cursor.shown = last
        cursor.time = bounds.time


def _rows(records: Records, found: Unpacked, stream: str) -> Iterator[Row]:
    """One a row of a packed message, one a message otherwise."""
    topics, values, pairs = records.topics.to_pylist(), found.values.to_pylist(), found.headers
    for run in found.typed:
        values[run.first : run.first + run.columns.num_rows] = run.columns.column(0).to_pylist()
    headers: list[Any] = [None] * len(found) if pairs is None else pairs.to_pylist()
    columns = zip(found.records.tolist(), found.index.tolist(), values, headers, strict=True)
    for place, (record, index, value, entries) in enumerate(columns):
        error = found.errors.get(place) or records.faults.get(record)
        stamp = datetime.fromtimestamp(records.times[record] / 1e6, UTC).isoformat(timespec="milliseconds")
        yield {
            "topic": topics[record],
            "value": value,
            "headers": [[name, value] for name, values in entries or () for value in values or ()],
            "stream": stream,
            "sequence": int(records.sequences[record]),
            **({} if index < 0 else {"pack_index": index}),
            "timestamp": stamp,
            **({} if error is None else {"pack_error": error}),
        }


def _text(row: Row, headers: bool) -> str:
    value = row["value"].decode("utf-8", "backslashreplace")
    place = f"{row['sequence']}.{row['pack_index']}" if "pack_index" in row else row["sequence"]
    error = f" ({row['pack_error']})" if "pack_error" in row else ""
    lines = [f"{place} {row['topic']} {value}{error}"]
    lines += [f"  {name}: {value}" for name, value in row["headers"]] if headers else []
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", "\n".join(lines))


def _json(row: Row) -> str:
    """One line; a value that is no UTF-8 stands as base64 in ``value_base64``."""
    try:
        value = {"value": row["value"].decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(row["value"]).decode()}
    return json.dumps({**row, "value": None, **value}, ensure_ascii=False)

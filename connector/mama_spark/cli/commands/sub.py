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
from ...contracts.errors import OptionError
from ...contracts.record_log import RecordLogBridge, Records
from ...options import SubscribeOptions, command
from ...packing.chunked_unpack import unpack_chunks
from ...packing.json_text import as_json_column
from ...packing.unpacked import Unpacked
from ...packing.unpacker import unpacked_as_is
from ...publishing.window.reconnecting import ReconnectingBridge
from ...recording.log_position import LogPosition, first_position
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
    if args.begin not in ("now", "earliest") and not args.begin.isdecimal():
        raise OptionError(f"--from wants now, earliest or a sequence, got {args.begin!r}")
    if args.count is not None and args.count < 0:
        raise OptionError(f"--count wants a number of messages, 0 or more, got {args.count}")
    bridge = ReconnectingBridge(lambda: log_bridge(o, o.wait_timeout), o.wait_timeout)
    left, delays = args.count, _POLL.delays()

    def show_new(opened: RecordLogBridge) -> None:
        nonlocal left
        for row in islice(new_rows(opened, o, shown), left):
            print(_json(row) if args.json else _text(row, args.headers), flush=True)
            left = None if left is None else left - 1
            bridge.progressed()

    try:
        shown = bridge.call(lambda opened: begin(opened, o, args.begin), timeout=0.0)
        places = (f"{name} from sequence {at.served + 1}" for name, at in shown.items())
        print(f"mama: follows {', '.join(places)}", file=sys.stderr, flush=True)
        while True:
            before = dict(shown)
            bridge.call(show_new)
            if left == 0:
                return 0
            if shown != before:
                delays.reset()
            time.sleep(delays.next())
    finally:
        bridge.close()


def begin(bridge: RecordLogBridge, o: SubscribeOptions, where: str) -> dict[str, LogPosition]:
    """The logs to show, and where to begin in each.

    :param where: ``now``, ``earliest`` or a sequence
    :raises OptionError: the sequence to begin at is yet to come
    """
    found = {}
    for name in logs_to_read(o, bridge):
        bounds = bridge.log(name).bounds()
        if where.isdecimal() and int(where) > bounds.last + 1:
            raise OptionError(f"--from {where}: {name} ends at {bounds.last}; now shows what comes")
        found[name] = first_position("latest" if where == "now" else where, LogPosition(), bounds, "")
    return found


def new_rows(bridge: RecordLogBridge, o: SubscribeOptions, shown: dict[str, LogPosition]) -> Iterator[Row]:
    """Rows behind the last one that was shown of each log; moves these on, row by row."""
    for name, at in shown.items():
        log = bridge.log(name)
        bounds = log.bounds_with(at.served, at.identity)
        shown[name], warning = at.in_log(log, bounds)
        if warning:
            print(f"mama: {warning}", file=sys.stderr)
        after = shown[name].served
        for records in log.read(after, bounds.last, o.topics) if bounds.last > after else ():
            parts = unpack_chunks(records, as_json_column) if o.unpack else [(records, unpacked_as_is(records))]
            for some, found in parts:
                for row in _rows(some, found, name):
                    yield row
                    shown[name] = LogPosition(bounds.identity, row["sequence"])
        shown[name] = LogPosition(bounds.identity, bounds.last, bounds.time)


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
    value = "null" if row["value"] is None else row["value"].decode("utf-8", "backslashreplace")
    place = f"{row['sequence']}.{row['pack_index']}" if "pack_index" in row else row["sequence"]
    error = f" ({row['pack_error']})" if "pack_error" in row else ""
    lines = [f"{place} {row['topic']} {value}{error}"]
    lines += [f"  {name}: {value}" for name, value in row["headers"]] if headers else []
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", "\n".join(lines))


def _json(row: Row) -> str:
    """One line; a value that is no UTF-8 stands as base64 in ``value_base64``."""
    try:
        value = {"value": None if row["value"] is None else row["value"].decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(row["value"]).decode()}
    return json.dumps({**row, "value": None, **value}, ensure_ascii=False)

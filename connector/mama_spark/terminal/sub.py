"""``mama sub PATTERN``: see messages as they are stored, from now on or from a place in the past."""

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

from ..bridges import log_bridge
from ..errors import OptionError, Unavailable
from ..log import Bounds, Log, LogBridge, Records
from ..options import SubscribeOptions
from .given import options

#: Seconds between two looks, the longer the less happens: a log is asked, it does not call, and on NATS every question
#: makes an audit advisory, which discovery keeps a bounded number of.
_OFTEN, _SELDOM = 0.1, 1.0

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what steers a terminal; lines and tabs do no harm

Row = dict[str, Any]


def run(args: argparse.Namespace) -> int:
    """Follows until Ctrl-C, or until ``--count`` messages were shown."""
    o = SubscribeOptions.parse(options(args, SubscribeOptions, topics=args.pattern))
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
    if not word.isdigit():
        raise OptionError(f"--from wants now, earliest or a sequence, got {word!r}")
    return int(word)


class _Place:
    """How far one log was shown."""

    def __init__(self, log: Log, begin: int | None) -> None:
        bounds = log.bounds()
        self.name, self.identity = log.name, bounds.identity
        self.shown = bounds.last if begin is None else begin - 1

    def to(self, bounds: Bounds) -> int:
        """The last one to show now."""
        if bounds.identity != self.identity:
            print(f"mama: {self.name} was deleted and made again", file=sys.stderr)
            self.identity, self.shown = bounds.identity, 0
        return bounds.last


def _follow(o: SubscribeOptions, begin: int | None) -> Iterator[Row]:
    """Rows as they come. An outage is waited for, ``waitTimeout`` long; where nobody was at first, nobody is.

    :raises Unavailable: it lasts longer
    """
    places: list[_Place] = []
    until = time.monotonic() + o.wait_timeout
    while True:
        bridge = log_bridge(o, o.wait_timeout)
        try:
            bridge.open()
            if not places:
                names = [o.stream] if o.stream is not None else bridge.names(o.topics)
                places = [_Place(bridge.log(name), begin) for name in names]
            pause = _OFTEN
            while True:
                until = time.monotonic() + o.wait_timeout
                shown = [place.shown for place in places]
                yield from _news(bridge, o, places)
                pause = min(2 * pause, _SELDOM) if shown == [place.shown for place in places] else _OFTEN
                time.sleep(pause)
        except Unavailable:
            if not places or time.monotonic() > until:
                raise
            time.sleep(_OFTEN)
        finally:
            bridge.close()


def _news(bridge: LogBridge, o: SubscribeOptions, places: list[_Place]) -> Iterator[Row]:
    for place in places:
        log = bridge.log(place.name)
        last = place.to(log.bounds())
        if last > place.shown:
            for records in log.read(place.shown, last, o.topics):
                for row in _rows(records, place.name):
                    yield row
                    place.shown = row["sequence"]
            place.shown = last


def _rows(records: Records, stream: str) -> Iterator[Row]:
    topics, payloads = records.topics.to_pylist(), records.payloads.to_pylist()
    headers: list[Any] = [None] * len(records) if records.headers is None else records.headers.to_pylist()
    columns = zip(records.sequences.tolist(), records.times.tolist(), topics, payloads, headers, strict=True)
    for sequence, micros, topic, payload, pairs in columns:
        stamp = datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")
        yield {
            "topic": topic,
            "value": payload,
            "headers": [[name, value] for name, values in pairs or () for value in values or ()],
            "stream": stream,
            "sequence": sequence,
            "timestamp": stamp,
        }


def _text(row: Row, headers: bool) -> str:
    value = row["value"].decode("utf-8", "backslashreplace")
    lines = [f"{row['sequence']} {row['topic']} {value}"]
    lines += [f"  {name}: {value}" for name, value in row["headers"]] if headers else []
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", "\n".join(lines))


def _json(row: Row) -> str:
    """One line; a value that is no UTF-8 stands as base64 in ``value_base64``."""
    try:
        value = {"value": row["value"].decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(row["value"]).decode()}
    return json.dumps({**row, "value": None, **value}, ensure_ascii=False)

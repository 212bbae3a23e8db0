"""``python -m bench.tango_replay ATTRIBUTES DEVICE...``: a producer that only replays, for :mod:`bench.tango_reader`.

A device server as far as subscriptions need it; its devices have so many attributes. For each line ``DEVICE COUNT`` on
its standard input it sends so many change events that were encoded before, the attributes in turn, as fast as it can,
and prints the seconds that this took. Event ``n`` of an attribute, counted from 0 in each replay, has the value
``n % VALUES``. It ends with its standard input.
"""

from __future__ import annotations

import sys
import time

from mama_spark.tango.device import Attribute, Device
from mama_spark.tango.scalars import ScalarEncoder
from mama_spark.tango.source import TangoEventSource
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import DataType, EventType, Quality

VALUES = 1000
HWM = 1_000_000
NOW = 1_700_000_000_000_000_000
_AT_ONCE = 10  #: events of one attribute, before the next one has its turn


def names(count: int) -> list[str]:
    """Of the attributes of each device."""
    return [f"attribute{n:02}" for n in range(count)]


def replay(source: TangoEventSource, device: str, frames: dict[str, list[bytes]], count: int) -> None:
    """:param count: a multiple of the number of attributes"""
    each = count // len(frames)
    for at in range(0, each, _AT_ONCE):
        some = range(at, min(at + _AT_ONCE, each))
        for name, ready in frames.items():
            source.push_data(device, name, EventType.CHANGE, [ready[n % VALUES] for n in some])


def main() -> None:
    count, devices = int(sys.argv[1]), sys.argv[2:]
    made = [Device(device, [Attribute(name) for name in names(count)]) for device in devices]
    frames = {}
    for name in names(count):
        encoder = ScalarEncoder(event_topic("bench", devices[0], name, EventType.CHANGE, False), name, DataType.DOUBLE)
        frames[name] = [encoder.data(NOW, Quality.VALID, float(value)) for value in range(VALUES)]
    with TangoEventSource(made, "127.0.0.1", hwm=HWM) as source:
        for device in devices:
            for name in names(count):
                source.set(device, name, 0.0)
        print(source.port, flush=True)
        for line in sys.stdin:
            device, wanted = line.split()
            begin = time.perf_counter()
            replay(source, device, frames, int(wanted))
            print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()

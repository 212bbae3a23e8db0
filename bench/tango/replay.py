"""``python -m bench.tango.replay ATTRIBUTES DEVICE...``: a producer that only replays, for :mod:`bench.tango.reader`.

A device server as far as subscriptions need it; its devices have so many attributes. For each line ``DEVICE COUNT`` on
its standard input it sends so many change events, the attributes in turn, as fast as whoever subscribed to that device
takes them, and prints the seconds that this took. Event ``n`` of an attribute, counted from 0 in each replay, has the
value ``n % VALUES``. It ends with its standard input.

What it sends are bytes of the wire that were made beforehand, only the counters are written anew: two cores are there
for the reader, not for a producer.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from mama_spark.tango.events.frame_layout import ScalarEncoder
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import DataType, EventType, Quality

from tests.support.ports import lasting_port

HOST = "127.0.0.1"
VALUES = 1000
HWM = 1_000_000
NOW = 1_700_000_000_000_000_000
_AT_ONCE = 10  #: events of one attribute, before the next one has its turn
_CTR = 4  #: where the counter stands in the third frame
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)  # ZMTP 3.0, 37/ZMTP
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"


def names(count: int) -> list[str]:
    """Of the attributes of each device."""
    return [f"attribute{n:02}" for n in range(count)]


def _frame(octets: bytes, more: bool) -> bytes:
    return bytes([more, len(octets)]) + octets


class Wire:
    """The events of a device as one array: block, attribute, event of the block; each block has ``_AT_ONCE`` events of
    every attribute."""

    def __init__(self, tango_host: str, device: str, attributes: list[str]) -> None:
        rows: list[bytes] = []
        for name in attributes:
            topic = event_topic(tango_host, device, name, EventType.CHANGE, False)
            encoder = ScalarEncoder(topic, name, DataType.DOUBLE)
            for value in range(VALUES):
                *first, last = encoder.frames(0, NOW, Quality.VALID, float(value))
                rows.append(b"".join(_frame(frame, True) for frame in first) + _frame(last, False))
                start = len(b"".join(_frame(frame, True) for frame in first[:2])) + 2
        (size,) = set(map(len, rows))
        where = np.dtype({"names": ["ctr"], "formats": ["<u4"], "offsets": [start + _CTR], "itemsize": size})
        turns = np.frombuffer(b"".join(rows), np.uint8).reshape(len(attributes), VALUES // _AT_ONCE, _AT_ONCE, size)
        self._blocks = np.ascontiguousarray(turns.transpose(1, 0, 2, 3)).view(where)[..., 0]
        self._order = np.arange(VALUES, dtype=np.uint32).reshape(-1, 1, _AT_ONCE)
        self._attributes = len(attributes)
        self._sent = 0  # of each attribute

    def replay(self, count: int) -> Iterator[npt.NDArray[np.void]]:
        """What is to be sent for so many events."""
        left = count // self._attributes // _AT_ONCE
        while left:
            blocks = self._blocks[:left]
            blocks["ctr"] = self._order[:left] + np.uint32(self._sent + 1)
            yield blocks
            self._sent += len(blocks) * _AT_ONCE
            left -= len(blocks)


class Publisher:
    """A PUB socket of ZMTP as far as sending to one subscriber a topic needs it. Waits for who does not take."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self._wanted: dict[bytes, socket.socket] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"tcp://{HOST}:{self._listening.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            peer, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            peer.sendall(_GREETING)
            stream.read(len(_GREETING))
            peer.sendall(bytes([4, len(_READY)]) + _READY)
            while flags := stream.read(1):
                (size,) = struct.unpack(">Q", stream.read(8)) if flags[0] & 2 else stream.read(1)
                body = stream.read(size)
                if not flags[0] & 4 and body[:1] == b"\1":
                    with self._changed:
                        self._wanted[body[1:]] = peer
                        self._changed.notify_all()

    def subscriber(self, topic: bytes) -> socket.socket:
        """Who wants it; waits until somebody does."""
        with self._changed:
            self._changed.wait_for(lambda: topic in self._wanted)
            return self._wanted[topic]


def main() -> None:
    count, devices = int(sys.argv[1]), sys.argv[2:]
    attributes = names(count)
    made = [Device(device, [Attribute(name) for name in attributes]) for device in devices]
    publisher = Publisher()
    beats = lasting_port()
    place = EndpointPair(f"tcp://{HOST}:{beats}", publisher.endpoint)
    with TangoEventSource(
        made, SourceSettings(HOST, heartbeat_port=beats, hwm=HWM, host_name=HOST, advertise=[place])
    ) as source:
        host = f"{HOST}:{source.port}"
        wires = {device: Wire(host, device, attributes) for device in devices}
        for device in devices:
            for name in attributes:
                source.set(device, name, 0.0)
        print(source.port, flush=True)
        for line in sys.stdin:
            device, wanted = line.split()
            topics = [str(event_topic(host, device, name, EventType.CHANGE, False)) for name in attributes]
            (peer,) = {publisher.subscriber(topic.encode()) for topic in topics}
            begin = time.perf_counter()
            for blocks in wires[device].replay(int(wanted)):
                peer.sendall(blocks.data)
            print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()

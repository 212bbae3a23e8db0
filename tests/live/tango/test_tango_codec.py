"""Event codec with the frames of a device server (TG-11 to TG-19)."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.events.event_codec import Event, decode, encode
from mama_spark.tango.events.frame_layout import ScalarEncoder
from mama_spark.tango.events.frames import NotAnEvent
from mama_spark.tango.giop.cdr import CdrReader, CdrWriter
from mama_spark.tango.topics import read_topic
from mama_spark.tango.types import (
    DTYPES,
    KIND_OF,
    AttributeConfig,
    AttributeValue,
    DataReady,
    DataType,
    DevState,
    Encoded,
    Format,
    InterfaceChange,
    Quality,
    ValueKind,
)

from tests.support.tango_processes.servers import TIMEOUT, DeviceProbe, TangoServer

TYPES = {
    "boolean": DataType.BOOLEAN, "short": DataType.SHORT, "long": DataType.LONG, "long64": DataType.LONG64,
    "float": DataType.FLOAT, "double": DataType.DOUBLE, "uchar": DataType.UCHAR, "ushort": DataType.USHORT,
    "ulong": DataType.ULONG, "ulong64": DataType.ULONG64, "string": DataType.STRING, "enum": DataType.ENUM,
    "state": DataType.STATE,
}  # fmt: skip
SAMPLES: dict[str, list[Any]] = {
    "boolean": [True, False], "short": [-32768, 32767], "long": [-(2**31), 7], "long64": [-(2**63), 2**63 - 1],
    "float": [1.5, -0.25], "double": [1e300, -2.5], "uchar": [0, 255], "ushort": [0, 65535], "ulong": [0, 2**32 - 1],
    "ulong64": [0, 2**64 - 1], "string": ["hello", "\xe9 \xfc"], "enum": [2, 0], "state": ["MOVING", "ON"],
}  # fmt: skip


class Wire:
    """Subscribes at a server as a client of some IDL does, and receives all frames of its event socket."""

    def __init__(self, server: TangoServer) -> None:
        self.server = server
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.frames: list[list[bytes]] = []

    def subscribe(self, attribute: str, event: str = "change", idl: int = 5) -> str:
        """The topic."""
        endpoint, topic = self._negotiate([self.server.devices[0], attribute, "subscribe", event, str(idl)])
        self.socket.connect(endpoint)
        return topic

    def _negotiate(self, arguments: list[str]) -> tuple[str, str]:
        """``command_inout_2`` in GIOP 1.2, and the strings of its answer: event endpoint and topic."""
        code = CdrWriter.inner(True)
        code.string("IDL:Tango/DevVarStringArray:1.0")
        code.string("DevVarStringArray")
        sequence = CdrWriter.inner(True)
        for number in (18, 0, 0):
            sequence.ulong(number)
        code.ulong(19)
        code.encapsulation(sequence)
        request = CdrWriter(True, b"GIOP\1\2\1\0" + bytes(4))
        request.ulong(1)
        request.raw(b"\3\0\0\0\0\0\0\0")
        request.octets(self.server.admin.encode())
        request.string("command_inout_2")
        request.ulong(0)
        request.align(8)
        request.string("ZmqEventSubscriptionChange")
        request.ulong(21)
        request.encapsulation(code)
        request.strings(arguments)
        request.ulong(0)
        octets = bytearray(request.getvalue())
        octets[8:12] = (len(octets) - 12).to_bytes(4, "little")
        with socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT) as connection:
            connection.sendall(octets)
            head = _exactly(connection, 12)
            body = _exactly(connection, int.from_bytes(head[8:12], "little"))
        reply = CdrReader(head + body, True, 12)
        assert (reply.ulong(), reply.ulong(), reply.ulong()) == (1, 0, 0), body
        reply.align(8)
        reply.ulong()
        reply.encapsulation()
        reply.array(np.int32)
        strings = reply.strings()
        return strings[1], strings[-2]

    def until(self, wanted: Callable[[Event], Any], act: Callable[[], Any]) -> Event:
        """Repeat ``act`` until such an event came; every frame that comes must be one, or no event at all."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            act()
            while self.socket.poll(50):
                frames = self.socket.recv_multipart()
                try:
                    event = decode(frames)
                except NotAnEvent:
                    continue
                assert isinstance(event, Event)
                if event.topic.device != self.server.devices[0]:
                    continue  # of another test
                self.frames.append(frames)
                if wanted(event):
                    return event
        raise AssertionError(f"no such event; last: {[decode(f) for f in self.frames[-3:]]}")

    def push(self, attribute: str, value: Any = None, dims: tuple[int, int] = (1, 0), **what: Any) -> AttributeValue:
        """Push a value until one of these dimensions came, and that one."""

        def wanted(event: Event) -> bool:
            if event.topic.attribute != attribute.lower() or not isinstance(event.data, AttributeValue):
                return False
            return event.data.r_dim == dims and event.data.quality.name == what.get("quality", "VALID")

        event = self.until(wanted, lambda: self.server.push(attribute, value, **what))
        assert decode(encode(event)) == event
        return value_of(event)

    def close(self) -> None:
        self.context.destroy(linger=0)


def _exactly(connection: socket.socket, size: int) -> bytes:
    octets = b""
    while len(octets) < size:
        more = connection.recv(size - len(octets))
        assert more, "the server has closed the connection"
        octets += more
    return octets


@pytest.fixture
def wire(lab: TangoServer) -> Iterator[Wire]:
    wire = Wire(lab)
    yield wire
    wire.close()


def content_of(name: str, samples: list[Any]) -> Any:
    kind = KIND_OF[TYPES[name]]
    if kind in DTYPES:
        return samples
    return tuple(DevState[s] for s in samples) if kind is ValueKind.STATE else tuple(samples)


def plain(value: AttributeValue) -> Any:
    return value.content.tolist() if isinstance(value.content, np.ndarray) else value.content


def value_of(event: Event) -> AttributeValue:
    assert isinstance(event.data, AttributeValue), event
    return event.data


def check_columns(wire: Wire) -> None:
    """Received events equal their columns, and encoding single numbers gives the received octets except for padding."""
    columns = BatchDecoder().decode(*(list(c) for c in zip(*wire.frames, strict=True)))
    assert not columns.bad
    assert columns.scalars
    for part in columns.scalars:
        for index, row in enumerate(part.rows.tolist()):
            event = decode(wire.frames[row])
            assert isinstance(event, Event)
            value = value_of(event)
            assert part.read[index : index + 1].tobytes() == value.read.tobytes()  # type: ignore[union-attr]
            told = DataType(value.data_type or next(t for t, k in KIND_OF.items() if k is value.kind))
            encoder = ScalarEncoder(event.topic, value.name, told, part.written is not None, event.little)
            numbers = value.content.tolist()  # type: ignore[union-attr]
            assert decode([*wire.frames[row][:3], encoder.data(value.time, value.quality, *numbers)]) == event


@pytest.mark.spec("TG-17")
def test_every_type_and_shape_that_a_real_server_pushes(lab: TangoServer, wire: Wire) -> None:
    """Scalar, spectrum, image"""
    for name, samples in SAMPLES.items():
        square = [samples, samples[::-1]]
        shapes: list[tuple[str, Any, Format, tuple[int, int], list[Any]]] = [
            (name, samples[0], Format.SCALAR, (1, 0), samples[:1]),
            (f"{name}_spectrum", samples, Format.SPECTRUM, (2, 0), samples),
            (f"{name}_spectrum", [], Format.SPECTRUM, (0, 0), []),
            (f"{name}_image", square, Format.IMAGE, (2, 2), samples + samples[::-1]),
        ]
        for attribute, given, format_, dims, want in shapes:
            if attribute == "state":
                continue  # the device's own, which is another test's
            assert wire.subscribe(attribute) == lab.topic(attribute)
            value = wire.push(attribute, given, dims)
            assert (value.name, value.format, value.data_type) == (attribute, format_, TYPES[name])
            assert plain(value) == content_of(name, want)
    check_columns(wire)


def test_state_status_and_encoded_of_a_real_server(lab: TangoServer, wire: Wire) -> None:
    for attribute in ("State", "Status", "encoded"):
        wire.subscribe(attribute)
    state = wire.push("State")
    assert (state.kind, state.content, state.data_type) == (ValueKind.DEVICE_STATE, DevState.ON, DataType.STATE)
    assert wire.push("Status").content == ("fine",)
    assert wire.push("encoded", {"format": "fmt", "data": "010203"}).content == (Encoded("fmt", b"\1\2\3"),)


def test_set_parts_and_qualities_of_a_real_server(lab: TangoServer, wire: Wire) -> None:
    for attribute in ("double_rw", "string_rw", "double"):
        wire.subscribe(attribute)
    value = wire.push("double_rw", 2.5)
    assert (plain(value), value.r_dim, value.w_dim) == ([2.5, 0.0], (1, 0), (1, 0))
    text = wire.push("string_rw", "read")
    assert text.read == ("read",)
    assert isinstance(text.written, tuple)
    assert len(text.written) == 1
    for quality in Quality:
        dims = (0, 0) if quality is Quality.INVALID else (1, 0)
        value = wire.push("double", 1.5, dims, quality=quality.name, time=1_700_000_000.25)
        assert value.time == 1_700_000_000_250_000_000
        assert (value.kind is ValueKind.NO_DATA) is (quality is Quality.INVALID)
    check_columns(wire)


@pytest.mark.spec("TG-18")
def test_errors_of_a_real_server(lab: TangoServer, wire: Wire) -> None:
    wire.subscribe("double")
    found = wire.until(lambda e: e.errors, lambda: lab.push_error("double", "MyReason", "my desc", "my.origin"))
    assert found.call.is_except
    error = found.errors[0]
    assert (error.reason, error.desc, error.origin) == ("MyReason", "my desc", "my.origin")
    assert decode(encode(found)) == found


@pytest.mark.parametrize("idl", [3, 4])
def test_the_forms_of_older_clients(lab: TangoServer, wire: Wire, idl: int) -> None:
    """AttributeValue_4, and the ``any`` of AttributeValue_3 on the same topic"""
    for name, samples in SAMPLES.items():
        if idl == 3 and name == "enum":
            continue  # of IDL 5; servers make a number of it for IDL 4
        attribute = f"{name}_spectrum"
        topic = wire.subscribe(attribute, idl=idl)
        assert read_topic(topic.encode()).idl is None
        value = wire.push(attribute, samples, (2, 0))
        assert value.format is (Format.UNKNOWN if idl == 3 else Format.SPECTRUM)
        assert plain(value) == content_of(name, samples)
        assert value.data_type is None


@pytest.mark.spec("TG-13")
@pytest.mark.parametrize("idl", [3, 5])
def test_configurations_of_a_real_server(lab: TangoServer, wire: Wire, probe: DeviceProbe, idl: int) -> None:
    """TG-13, and AttributeConfig_3 of older clients."""
    wire.subscribe("level", "attr_conf", idl)
    numbers = itertools.count()

    def change() -> None:
        probe.call("configure", device=lab.address(), attribute="level", changes={"label": f"L{next(numbers)}"})

    found = wire.until(lambda e: isinstance(e.data, AttributeConfig), change)
    config = found.data
    assert isinstance(config, AttributeConfig)
    assert (config.name, config.unit, config.ch_event.abs_change) == ("level", "V", "0.5")
    assert config.label.startswith("L")
    assert config.description == "a level"
    assert (config.root_attr_name != "") is (idl == 5)
    assert decode(encode(found)) == found


@pytest.mark.spec("TG-15")
def test_data_ready_of_a_real_server(lab: TangoServer, wire: Wire) -> None:
    wire.subscribe("double_spectrum", "data_ready")
    found = wire.until(lambda e: True, lambda: lab.do("data_ready", "double_spectrum", counter=-7))
    assert found.data == DataReady("double_spectrum", DataType.DOUBLE, -7)


@pytest.mark.spec("TG-16")
def test_interfaces_of_a_real_server(lab: TangoServer, wire: Wire) -> None:
    wire.subscribe("double")
    wire.push("double", 1.0)  # from here on the connection loses nothing
    wire.subscribe("", "intr_change", 6)
    lab.do("add", "double_more")
    found = wire.until(lambda e: isinstance(e.data, InterfaceChange), lambda: None)
    assert isinstance(found.data, InterfaceChange)
    assert "double_more" in [a.name for a in found.data.atts]
    assert {"Echo", "Init"} <= {c.cmd_name for c in found.data.cmds}
    assert found.topic.attribute is None
    assert decode(encode(found)) == found

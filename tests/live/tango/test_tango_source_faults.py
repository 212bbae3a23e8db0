"""Event source with faults: restarts, stopped clients, overflow, invalid data."""

from __future__ import annotations

import contextlib
import gc
import random
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.tango.client.device_proxy import DeviceProxy as Remote
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.giop.typecode import STRINGS
from mama_spark.tango.idl.calls import CommandCall, ReadCall, write_command, write_reading
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import Format
from mama_spark.testing.waiting import until

from tests.support.tango_processes.servers import BEAT, TIMEOUT, DeviceProbe, Event
from tests.support.tango_processes.source_process import SourceProcess
from tests.support.tiers import EXPLORE

DEVICE, ADMIN = "test/pub/1", "dserver/mama/source"
SEED = 20_261_121


@pytest.fixture
def source() -> Iterator[TangoEventSource]:
    with TangoEventSource([Device(DEVICE, [Attribute("level")])], SourceSettings(heartbeat_period=BEAT)) as started:
        yield started


def errors_in(events: list[Event]) -> list[str]:
    return [event["errors"][0]["reason"] for event in events if event["err"]]


def admin_of(source: TangoEventSource) -> Remote:
    return open_device(parse_device(source.address(DEVICE)).sibling(source.admin), timeout=TIMEOUT)


def still_serves(source: TangoEventSource, probe: DeviceProbe) -> None:
    """A fresh client subscribes, reads and gets an event."""
    number = probe.subscribe(source.address(DEVICE), "level", "change")
    until(lambda: len(probe.events(number)) > 1, lambda: source.push_change_event(DEVICE, "level", 4.5))
    assert probe.events(number)[-1]["value"]["value"] == 4.5
    assert not errors_in(probe.events(number))


# --- too much ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.spec("TG-44-TG-46")
def test_a_stopped_client_blocks_no_other_and_sees_its_gap(tmp_path: Path) -> None:
    """The events exceed the high-water marks and the TCP buffers."""
    count, first = 60_000, 1000
    with (
        SourceProcess(tmp_path / "source", hwm=100, heartbeat_period=BEAT) as source,
        DeviceProbe(tmp_path / "slow") as slow,
        DeviceProbe(tmp_path / "fast", environment={"TANGO_EVENT_BUFFER_HWM": "1000000"}) as fast,
    ):
        numbers = {client: client.subscribe(source.address, "level", "change", quiet=True) for client in (slow, fast)}
        for client, number in numbers.items():
            until(
                lambda c=client, n=number: c.call("counted", subscription=n)["count"] > 1,  # type: ignore[misc]
                lambda: source.push("level", 1.0),
            )
        slow.pause()
        source.call("burst", attribute="level", first=first, count=count)
        slow.resume()
        last = float(first + count)
        until(
            lambda: all(c.call("counted", subscription=n)["last"] == last for c, n in numbers.items()),
            lambda: source.push("level", last),
        )
        slow.wait_event(numbers[slow], lambda e: errors_in([e]) == ["API_MissedEvents"])
        assert slow.call("counted", subscription=numbers[slow])["count"] < count
        assert source.running
        for client, number in numbers.items():
            client.unsubscribe(number)


@pytest.mark.spec("TG-45")
def test_pushing_goes_on_while_answers_are_waited_for(source: TangoEventSource) -> None:
    """A client that never reads its replies is disconnected and does not block others."""
    source.add_attributes(DEVICE, [Attribute(f"a{n}", description="d" * 50_000) for n in range(20)])
    asked = messages.GiopRequest(0, id=1, key=DEVICE.encode(), operation="get_attribute_config_5")
    call = messages.encode(asked, lambda writer: writer.strings(["All attributes_3"]))
    with socket.create_connection(("127.0.0.1", source.port)) as greedy:
        greedy.setblocking(False)
        gone = threading.Event()

        def ask() -> None:
            try:
                select.select([], [greedy], [], 0.02)
                greedy.send(call)
            except BlockingIOError:
                return
            except OSError:
                gone.set()

        with admin_of(source) as admin:

            def everybody() -> None:
                ask()
                admin.ping()
                source.push_change_event(DEVICE, "level", 1.0)

            until(gone.is_set, everybody)


# --- nonsense ------------------------------------------------------------------------------------------------


def _calls() -> list[bytes]:
    """One of each kind that clients send."""

    def request(key: str, operation: str, body: messages.Body | None = None, minor: int = 0) -> bytes:
        return messages.encode(messages.GiopRequest(minor, id=1, key=key.encode(), operation=operation), body)

    subscribing = CommandCall("ZmqEventSubscriptionChange", STRINGS, [DEVICE, "level", "subscribe", "change", "5"])
    confirming = CommandCall("EventConfirmSubscription", STRINGS, [DEVICE, "level", "idl5_change"])
    return [
        request(DEVICE, "_is_a", lambda w: w.string("IDL:Tango/Device_5:1.0")),
        request(ADMIN, "command_inout_4", lambda w: write_command(w, subscribing)),
        request(ADMIN, "command_inout_4", lambda w: write_command(w, confirming), minor=2),
        request(DEVICE, "read_attributes_5", lambda w: write_reading(w, ReadCall(("level", "State")))),
        request(DEVICE, "get_attribute_config_5", lambda w: w.strings(["level"])),
        request(DEVICE, "command_query_2", lambda w: w.string("State")),
        messages.encode(messages.LocateRequest(2, id=3, key=DEVICE.encode())),
    ]


def _mutated(rng: random.Random, calls: list[bytes]) -> bytes:
    """A call some of whose bytes are changed, taken out, or followed by others."""
    data = rng.choice(calls)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice([rng.randbytes(4), b"\xff\xff\xff\x7f", b""]) + data[at + rng.randint(0, 4) :]
    return data


@pytest.mark.spec("TG-45")
def test_invalid_bytes_do_not_affect_other_clients(source: TangoEventSource, probe: DeviceProbe) -> None:
    """Many invalid messages are sent; then a new client is served normally."""
    rng, calls, sent, connections = random.Random(SEED), _calls(), 0, 400 if EXPLORE else 60
    with admin_of(source) as bystander:
        for _ in range(connections):
            with socket.create_connection(("127.0.0.1", source.port), TIMEOUT) as hostile:
                try:
                    for _ in range(10):
                        hostile.sendall(_mutated(rng, calls))
                        sent += 1
                    hostile.shutdown(socket.SHUT_WR)
                    while hostile.recv(1 << 16):
                        pass
                except OSError:
                    continue
        bystander.ping()
    assert sent > 5 * connections
    still_serves(source, probe)


def test_a_client_that_does_not_send_giop_gets_a_message_error(source: TangoEventSource) -> None:
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GIOP\x01\x02\x01\x00\xff\xff\xff\x7f",
        b"GIOP\x09\x00\x01\x00" + bytes(4),
    ):
        with socket.create_connection(("127.0.0.1", source.port), TIMEOUT) as client:
            client.sendall(nonsense)
            answer = b""
            while more := client.recv(100):
                answer += more
        assert answer[:4] == b"GIOP"
        assert answer[7] == messages.MessageType.MESSAGE_ERROR


@pytest.mark.spec("TG-45")
def test_a_client_that_sends_invalid_data_and_does_not_read_uses_limited_memory(probe: DeviceProbe) -> None:
    """The connection stays open while its replies wait, and further data is discarded."""
    wide = Attribute("wide", format=Format.SPECTRUM)
    with TangoEventSource([Device(DEVICE, [wide])]) as source:
        source.set(DEVICE, "wide", [0.0] * 500_000)
        body = messages.encode(
            messages.GiopRequest(2, id=1, key=DEVICE.encode(), operation="read_attributes_5"),
            lambda writer: write_reading(writer, ReadCall(("wide",))),
        )
        with socket.create_connection(("127.0.0.1", source.port), TIMEOUT) as hostile:
            hostile.sendall(body * 8 + b"GET / HTTP/1.1\r\n\r\n")
            service = source._giop_server
            assert service is not None
            until(lambda: any(client.closing for client in tuple(service.clients)))
            for _ in range(200):
                hostile.sendall(bytes(1 << 16))
            (client,) = service.clients
            assert client.transport.get_write_buffer_size()
            assert len(client.assembler._data) < 1 << 20
            assert probe.call("read", device=source.address(DEVICE), attribute="State")["value"] == "ON"


def test_many_idle_connections_leave_room_for_the_next(source: TangoEventSource, probe: DeviceProbe) -> None:
    idle = [socket.create_connection(("127.0.0.1", source.port), TIMEOUT) for _ in range(200)]
    try:
        for half in idle[::2]:
            half.sendall(_calls()[1][:30])
        still_serves(source, probe)
    finally:
        for found in idle:
            found.close()


@pytest.mark.spec("TG-35")
def test_threads_push_at_the_same_time_without_mixing_frames(source: TangoEventSource, probe: DeviceProbe) -> None:
    """Frames of an event stay together, counters have no gap"""
    number = probe.subscribe(source.address(DEVICE), "level", "change")
    until(lambda: len(probe.events(number)) > 1, lambda: source.push_change_event(DEVICE, "level", 0.0))
    begin = len(probe.events(number))

    def push(first: int) -> None:
        for value in range(first, first + 100):
            source.push_change_event(DEVICE, "level", value)

    threads = [threading.Thread(target=push, args=(n * 100 + 1,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: any(e["value"]["value"] == -1 for e in probe.events(number)),
          lambda: source.push_change_event(DEVICE, "level", -1))  # fmt: skip
    events = probe.events(number)
    assert not errors_in(events)
    values = [e["value"]["value"] for e in events[begin - 1 :] if e["value"]["value"] > 0]
    assert sorted(values) == list(range(1, 401))


def test_clients_that_connect_while_it_closes_are_disconnected() -> None:
    for _ in range(20):
        with TangoEventSource([Device("a/b/1", [Attribute("x")])]) as source:
            clients = [socket.create_connection(("127.0.0.1", source.port), 60) for _ in range(3)]
        for client in clients:
            with client, contextlib.suppress(ConnectionResetError):  # the system had connected it, or we had
                assert client.recv(1) == b""
    gc.collect()  # tells of sockets that nobody closed

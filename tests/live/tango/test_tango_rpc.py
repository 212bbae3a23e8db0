"""Calls of device servers, with and without a database, and of servers that violate the protocol."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from mama_spark.contracts.errors import MamaError
from mama_spark.tango.client.device_proxy import DeviceProxy, open_device, reference_of
from mama_spark.tango.client.rpc_connection import RpcConnection
from mama_spark.tango.errors import BadReply, CallLost, DevFailed, DeviceAway, ServerAway
from mama_spark.tango.giop import messages
from mama_spark.tango.giop.ior import Address, Reference, parse_device, write_reference
from mama_spark.tango.giop.messages import GiopReply, GiopRequest, MessageAssembler, ReplyStatus
from mama_spark.tango.giop.typecode import STRING, read_any
from mama_spark.tango.idl.calls import CommandCall as Call
from mama_spark.tango.idl.calls import Forwarded, write_command
from mama_spark.tango.idl.negotiation import Confirmation, SubscriberInfo
from mama_spark.tango.types import DevState, EventType, Quality

from tests.support.ports import lasting_port
from tests.support.tango_processes.servers import TIMEOUT, TangoDatabase, TangoServer


def admin_of(server: TangoServer) -> DeviceProxy:
    return open_device(parse_device(server.address()).sibling(server.admin), timeout=TIMEOUT)


def opened(server: TangoServer) -> DeviceProxy:
    return open_device(server.address(), timeout=TIMEOUT)


# --- what real servers say -----------------------------------------------------------------------------------


@pytest.mark.spec("TG-10", "TG-26", "TG-27", "TG-28", "TG-37")
def test_a_subscription_is_negotiated_confirmed_and_counted(either: TangoServer) -> None:
    with admin_of(either) as admin:
        info = admin.subscribe(SubscriberInfo(either.devices[0], "double", EventType.CHANGE, 5))
        assert (info.release, info.device_idl, info.hwm, info.zmq) == (1033, 6, 1000, 435)
        assert info.topic == either.topic("double")
        assert info.channel == f"tango://{either.host}/{either.admin}"
        assert all(place.startswith("tcp://127.0.0.1:") for pair in info.endpoints for place in pair)
        admin.confirm([Confirmation(either.devices[0], "double", "idl5_change")] * 2)
        counters = admin.query_event_system()["server"]["event_counters"]
        counted = {topic: n for topic, n in counters.items() if either.devices[0] in topic}
        assert counted == {either.topic("double", "change"): 1}


@pytest.mark.spec("TG-17", "TG-18")
def test_attributes_carry_time_quality_the_set_part_and_their_own_errors(lab: TangoServer) -> None:
    lab.tell("double", 1.0, quality="WARNING", time=12345.25)
    lab.tell("long", error={"reason": "Broken", "desc": "d", "origin": "o"})
    with opened(lab) as device:
        double, long, both, none = device.read(["double", "long", "double_rw", "nope"])
    assert (double.quality, double.time) == (Quality.WARNING, 12_345_250_000_000)
    assert long.errors[0][:1] + long.errors[0][2:] == ("Broken", "d", "o")
    assert (tuple(both.r_dim), tuple(both.w_dim)) == ((1, 0), (1, 0))
    assert none.errors[0].reason == "API_AttrNotFound"


def test_commands_take_and_give_values_or_fail_with_their_stack(lab: TangoServer) -> None:
    with opened(lab) as device:
        assert device.command("Echo", "häßlich") == "häßlich"
        assert device.command("Init") is None
        assert device.command("State") == DevState.ON.value
        with pytest.raises(DevFailed) as caught:
            device.command("Fail", "Mine")
        assert caught.value.errors[0].reason == "Mine"
        assert caught.value.errors[0].desc == "as wanted"
        with pytest.raises(DevFailed, match="API_CommandNotFound"):
            device.command("Nope")
        with admin_of(lab) as admin:
            assert f"Lab::{lab.devices[0]}" in admin.command("QueryDevice")
            numbers, texts = admin.command("ZmqEventSubscriptionChange", ["info"])
            assert (numbers.tolist(), len(texts)) == ([1033], 2)


@pytest.mark.parametrize("minor", [0, 1, 2])
@pytest.mark.parametrize("little", [True, False], ids=["little", "big"])
def test_real_servers_understand_every_version_and_order(lab: TangoServer, minor: int, little: bool) -> None:
    request = GiopRequest(minor, little, id=7, key=lab.devices[0].encode(), operation="command_inout_4")
    data = messages.encode(request, lambda writer: write_command(writer, Call("Echo", STRING, "text")))
    assembler = MessageAssembler()
    with socket.create_connection(("127.0.0.1", lab.port), TIMEOUT) as connection:
        connection.sendall(data)
        while (found := assembler.next_message()) is None:
            assembler.feed(connection.recv(65536))
    reply, reader = messages.decode(found)
    assert isinstance(reply, GiopReply)
    assert (reply.minor, reply.id, reply.status) == (minor, 7, ReplyStatus.NO_EXCEPTION)
    assert read_any(reader)[1] == "text"
    reader.finish()


@pytest.mark.spec("TG-21", "TG-30")
def test_the_database_returns_defined_and_exported_devices(tango_database: TangoDatabase, tmp_path: Path) -> None:
    with pytest.raises(DevFailed, match="DB_DeviceNotDefined"):
        reference_of(parse_device("no/such/device", tango_database.host), timeout=TIMEOUT)
    device = "test/own/1"
    with TangoServer(tmp_path / "server", [device], database=tango_database, instance="own") as server:
        name = parse_device(device, tango_database.host)
        first = reference_of(name, timeout=TIMEOUT)
        assert first.addresses == (Address("127.0.0.1", server.port),)
        with open_device("sys/database/2", tango_host=tango_database.host, timeout=TIMEOUT) as found:
            assert found.import_device(device).exported
            assert found.import_device(device).server == "Lab/own"
        server.kill()  # what it had exported stays there
        with pytest.raises(ServerAway):
            open_device(name, timeout=TIMEOUT)
        server.start()
        open_device(name, timeout=TIMEOUT).close()
        server.stop()  # in order: it tells the database
        with pytest.raises(DeviceAway, match="API_DeviceNotExported"):
            open_device(name, timeout=TIMEOUT)


# --- servers that come and go --------------------------------------------------------------------------------


def test_a_server_that_stands_still_costs_no_more_than_the_deadline_and_its_late_reply_is_dropped(
    own_lab: TangoServer,
) -> None:
    with opened(own_lab) as device:
        device.ping()
        own_lab.pause()
        began = time.monotonic()
        with pytest.raises(CallLost, match=r"within 0\.2 s"):
            device.command("Echo", "late", timeout=0.2)
        assert time.monotonic() - began < TIMEOUT
        assert not device.connection.closed
        own_lab.resume()
        assert device.command("Echo", "next") == "next"


@pytest.mark.spec("TG-41")
def test_a_killed_server_is_noticed_and_a_new_one_reached_by_the_same_connection(own_lab: TangoServer) -> None:
    with opened(own_lab) as device:
        device.ping()
        own_lab.kill()
        with pytest.raises(ServerAway):
            device.ping()
        assert device.connection.closed
        with pytest.raises(ServerAway):
            device.ping()
        with pytest.raises(ServerAway):
            device.connection.open()
        own_lab.start()
        device.connection.open()
        device.ping()


def test_threads_share_a_connection(lab: TangoServer) -> None:
    with opened(lab) as device, ThreadPoolExecutor(8) as pool:
        texts = [f"text {n}" for n in range(200)]
        assert list(pool.map(lambda text: device.command("Echo", text), texts)) == texts


# --- servers that misbehave ----------------------------------------------------------------------------------

Script = Callable[[socket.socket, Callable[[], GiopRequest]], None]


class Scripted:
    """A server that runs a script for each connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(TIMEOUT)
        self._listener.close()

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(TIMEOUT)
                assembler = MessageAssembler()

                try:
                    self._script(connection, partial(self._request, connection, assembler))
                except OSError:
                    continue  # the client has gone
                self._done.wait(0.01)

    @staticmethod
    def _request(connection: socket.socket, assembler: MessageAssembler) -> GiopRequest:
        while (found := assembler.next_message()) is None:
            data = connection.recv(65536)
            if not data:
                raise ConnectionAbortedError
            assembler.feed(data)
        message, _ = messages.decode(found)
        assert isinstance(message, GiopRequest)
        return message

    def hold(self) -> None:
        """Until the test is over."""
        self._done.wait(TIMEOUT)


def ok(request: GiopRequest, more: int = 0) -> bytes:
    return messages.encode(GiopReply(request.minor, request.little, id=request.id + more))


def forward(request: GiopRequest, target: Reference) -> bytes:
    reply = GiopReply(id=request.id, status=ReplyStatus.LOCATION_FORWARD)
    return messages.encode(reply, lambda writer: write_reference(writer, target))


Fault = Callable[[socket.socket, GiopRequest, Scripted], None]


def halting(connection: socket.socket, request: GiopRequest, scripted: Scripted) -> None:
    connection.sendall(ok(request)[:20])
    scripted.hold()


def throwing(request: GiopRequest) -> bytes:
    reply = GiopReply(id=request.id, status=ReplyStatus.USER_EXCEPTION)
    return messages.encode(reply, lambda writer: writer.string("IDL:x:1.0"))


def sending(data: Callable[[GiopRequest], bytes]) -> Fault:
    return lambda connection, request, _: connection.sendall(data(request))


BROKEN: dict[str, tuple[type[MamaError], float, Fault]] = {
    "never answers": (CallLost, 0.2, lambda connection, request, scripted: scripted.hold()),
    "closes after the request": (CallLost, TIMEOUT, sending(lambda request: b"")),
    "says that it closes": (ServerAway, TIMEOUT, sending(lambda _: messages.encode(messages.CloseConnection()))),
    "sends half of a reply": (CallLost, TIMEOUT, sending(lambda request: ok(request)[:20])),
    "sends half of a reply and waits": (CallLost, 0.2, halting),
    "speaks something else": (BadReply, TIMEOUT, sending(lambda request: b"HTTP/1.1 400 Bad Request\r\n")),
    "could not read it": (BadReply, TIMEOUT, sending(lambda request: messages.encode(messages.MessageError()))),
    "answers what nobody asked": (BadReply, TIMEOUT, sending(lambda request: ok(request, 1))),
    "asks itself": (BadReply, TIMEOUT, sending(messages.encode)),
    "answers another kind": (BadReply, TIMEOUT, sending(lambda r: messages.encode(messages.LocateReply(id=r.id)))),
    "announces gigabytes": (BadReply, TIMEOUT, sending(lambda request: b"GIOP\1\2\1\1\xff\xff\xff\x7f")),
    "throws what no device throws": (BadReply, TIMEOUT, sending(throwing)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_server_that_misbehaves_costs_one_call_and_a_clear_error(name: str) -> None:
    kind, timeout, fault = BROKEN[name]
    scripted = Scripted(lambda connection, request: fault(connection, request(), scripted))
    with scripted, RpcConnection([scripted.address], timeout=timeout) as connection:
        with pytest.raises(MamaError) as caught:
            DeviceProxy(connection, b"x").ping()
        assert type(caught.value) is kind


def test_a_result_that_is_none_is_a_bad_reply() -> None:
    scripted = Scripted(lambda connection, request: connection.sendall(ok(request())))
    with scripted, RpcConnection([scripted.address], timeout=TIMEOUT) as connection, pytest.raises(BadReply):
        DeviceProxy(connection, b"x").adm_name()


def test_a_connection_that_the_server_closed_while_it_was_silent_is_seen_before_the_call() -> None:
    """omniORB closes connections after three minutes of silence."""
    scripted = Scripted(lambda connection, _: connection.sendall(messages.encode(messages.CloseConnection())))
    with scripted, RpcConnection([scripted.address], timeout=TIMEOUT) as connection:
        found = connection._socket
        assert found is not None
        found.settimeout(TIMEOUT)
        while found.recv(1, socket.MSG_PEEK):
            found.recv(1)
        with pytest.raises(ServerAway) as caught:
            DeviceProxy(connection, b"x").ping()
        assert type(caught.value) is ServerAway
        assert connection.closed


def test_a_device_that_moved_within_its_server_is_followed() -> None:
    keys: list[bytes] = []

    def script(connection: socket.socket, request: Callable[[], GiopRequest]) -> None:
        while True:
            got = request()
            keys.append(got.key)
            if got.key == b"new":
                connection.sendall(ok(got))
                continue
            here = Address("127.0.0.1", connection.getsockname()[1])
            connection.sendall(forward(got, Reference((here,), b"new")))

    with Scripted(script) as scripted, RpcConnection([scripted.address], timeout=TIMEOUT) as connection:
        device = DeviceProxy(connection, b"old")
        device.ping()
        device.ping()
    assert keys == [b"old", b"new", b"new"]


@pytest.mark.parametrize(("key", "kind"), [(b"old", ServerAway), (b"x", Forwarded)])
def test_endless_and_foreign_location_forwards_are_errors(key: bytes, kind: type[MamaError]) -> None:
    def script(connection: socket.socket, request: Callable[[], GiopRequest]) -> None:
        while True:
            port = connection.getsockname()[1] if key == b"old" else 1
            connection.sendall(forward(request(), Reference((Address("127.0.0.1", port),), b"old")))

    with (
        Scripted(script) as scripted,
        RpcConnection([scripted.address], timeout=TIMEOUT) as connection,
        pytest.raises(kind),
    ):
        DeviceProxy(connection, key).ping()


def test_a_call_waits_for_other_threads_no_longer_than_its_deadline_and_close_wakes_them() -> None:
    came = threading.Event()

    def script(connection: socket.socket, request: Callable[[], GiopRequest]) -> None:
        request()
        came.set()
        request()  # until the client goes

    with (
        Scripted(script) as scripted,
        RpcConnection([scripted.address], timeout=TIMEOUT) as connection,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(DeviceProxy(connection, b"x").ping)
        assert came.wait(TIMEOUT)
        with pytest.raises(ServerAway, match="calls of other threads"):
            DeviceProxy(connection, b"x").ping(timeout=0.05)
        connection.close()
        assert isinstance(waiting.exception(TIMEOUT), CallLost)


@pytest.mark.spec("TG-33")
def test_addresses_are_tried_in_order_and_none_that_answers_is_an_error() -> None:
    """TG-33 in the control plane: an object may name several addresses."""
    nobody = Address("127.0.0.1", lasting_port())
    with (
        Scripted(lambda connection, request: connection.sendall(ok(request()))) as scripted,
        RpcConnection([nobody, scripted.address], timeout=TIMEOUT) as connection,
    ):
        DeviceProxy(connection, b"x").ping()
    with pytest.raises(ServerAway, match=str(nobody.port)):
        RpcConnection([nobody], timeout=TIMEOUT).open()
    with pytest.raises(ServerAway):
        RpcConnection([Address("a" * 70 + ".example", 1)], timeout=TIMEOUT).open()
    with pytest.raises(ServerAway, match="not connected"):
        DeviceProxy(RpcConnection([nobody]), b"x").ping()

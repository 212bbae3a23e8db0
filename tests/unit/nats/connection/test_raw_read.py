"""What comes in on a TCP connection of nats-py comes as it was read, all of it and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from mama_spark.nats.connection.raw_read import RawReadProtocol, fits
from mama_spark.nats.protocol.receive_buffer import ReceiveBuffer
from nats.aio.transport import TcpTransport

tcp_transport: Any = TcpTransport


class Socket:
    """A transport of asyncio, by hand."""

    def __init__(self, tls: object = None) -> None:
        self.protocol: Any = None
        self.reading = True
        self._tls = tls

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> object:
        return self._tls if name == "sslcontext" else None

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def receive(self, data: bytes) -> None:
        """One read of the socket, or several, if it gives less room."""
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        while data:
            room: Any = self.protocol.get_buffer(-1)
            n = min(len(room), len(data))
            room[:n], data = data[:n], data[n:]
            self.protocol.buffer_updated(n)

    def is_closing(self) -> bool:
        """So that a writer that is forgotten does not care."""
        return True


def connected(socket: Socket, transport: Any = None) -> Any:
    """A transport of nats-py as it is after ``connect``; it connects again, too."""
    reader = asyncio.StreamReader()
    socket.protocol = asyncio.StreamReaderProtocol(reader)
    socket.protocol.connection_made(socket)
    transport = tcp_transport() if transport is None else transport
    transport._io_reader = reader
    transport._io_writer = asyncio.StreamWriter(socket, socket.protocol, reader, asyncio.get_running_loop())  # type: ignore[arg-type]
    return transport


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_what_was_read_comes_as_it_is() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport, ReceiveBuffer())
        first = asyncio.ensure_future(transport.read(10))
        await asyncio.sleep(0)
        one, two = b"x" * 100_000, b"y" * 100_000
        socket.receive(one)
        socket.receive(two)
        assert await first == one
        assert await transport.read(10) == two

    run(work())


def test_what_comes_while_the_buffer_is_used_is_behind_what_came_before() -> None:
    async def work() -> None:
        socket, buffer = Socket(), ReceiveBuffer()
        transport = connected(socket)
        RawReadProtocol(transport, buffer)
        waiting = asyncio.ensure_future(transport.read(1))
        await asyncio.sleep(0)
        socket.receive(b"one")
        socket.receive(b"two")
        assert await waiting == b"one"
        buffer.start(memoryview(b"one"), 0)
        socket.receive(b"three")
        assert await transport.read(1) == b"two", "so that what follows it may not be in the buffer yet"
        assert await transport.read(1) == b"three"
        socket.receive(b"four")
        socket.receive(b"five")
        assert not transport.at_eof()
        assert await transport.read(1) == b""
        assert buffer.stop() == b"onefourfive"
        socket.receive(b"six")
        assert await transport.read(1) == b"six"
        buffer.start(memoryview(b""), 0)
        while socket.reading:
            socket.receive(bytes(100_000))
        assert await transport.read(1) == b""
        assert socket.reading
        assert len(buffer) == 1_100_000
        socket.receive(b"the end")
        socket.protocol.eof_received()
        assert not transport.at_eof()
        assert await transport.read(1) == b""
        assert transport.at_eof()

    run(work())


def test_what_a_connection_that_was_replaced_still_brings_is_not_for_the_next_one() -> None:
    async def work() -> None:
        buffer, transport = ReceiveBuffer(), connected(first := Socket())
        RawReadProtocol(transport, buffer)
        waiting = asyncio.ensure_future(transport.read(1))
        await asyncio.sleep(0)
        first.receive(b"old")
        await waiting
        old = first.protocol
        connected(second := Socket(), transport)
        RawReadProtocol(transport, buffer)
        waiting = asyncio.ensure_future(transport.read(1))
        await asyncio.sleep(0)
        second.receive(b"new")
        assert await waiting == b"new"
        buffer.start(memoryview(b""), 0)
        first.protocol = old
        first.receive(b"too late")
        second.receive(b"newer")
        assert await transport.read(1) == b""
        assert buffer.stop() == b"newer"

    run(work())


def test_what_came_before_and_to_who_waits_at_the_reader_comes_first() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        waiting = asyncio.ensure_future(transport.read(3))  # as the loop of the client does before we come
        await asyncio.sleep(0)
        RawReadProtocol(transport, ReceiveBuffer())
        socket.receive(b"abcd")
        assert await waiting == b"abc"
        socket.receive(b"ef")
        assert await transport.read(3) == b"def"
        socket.receive(b"gh")
        assert not transport.at_eof()
        assert await transport.read(3) == b"gh"

    run(work())


def test_the_end_comes_behind_all_data() -> None:
    """The server says why before it closes."""

    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport, ReceiveBuffer())
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        socket.receive(b"-ERR 'why'\r\n")
        socket.protocol.eof_received()
        assert await waiting == b"-ERR 'why'\r\n"
        assert transport.at_eof()
        assert await transport.read(3) == b""
        later = connected(socket := Socket())
        RawReadProtocol(later, ReceiveBuffer())
        waiting = asyncio.ensure_future(later.read(3))
        await asyncio.sleep(0)
        socket.receive(b"a")
        await waiting
        socket.receive(b"b")
        socket.protocol.eof_received()
        assert not later.at_eof()
        assert await later.read(3) == b"b"

    run(work())


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")], ids=["closed", "reset"])
def test_who_waits_hears_of_the_end(error: Exception | None) -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport, ReceiveBuffer())
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        socket.protocol.connection_lost(error)
        if error is None:
            assert await waiting == b""
            assert transport.at_eof()
        else:
            with pytest.raises(ConnectionResetError):
                await waiting
            with pytest.raises(ConnectionResetError):
                await transport.drain()

    run(work())


def test_the_next_connection_of_a_transport_is_read_as_ever_until_an_intake_comes() -> None:
    async def work() -> None:
        transport = connected(first := Socket())
        RawReadProtocol(transport, ReceiveBuffer())
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        first.receive(b"old")
        first.receive(b"older")
        first.protocol.connection_lost(None)
        await waiting
        connected(second := Socket(), transport)
        second.receive(b"INFO\r\nPONG\r\nabc")
        assert await transport.readline() == b"INFO\r\n"
        assert await transport.readline() == b"PONG\r\n"
        assert not transport.at_eof()
        assert await transport.read(1) == b"a"
        assert fits(transport)
        RawReadProtocol(transport, ReceiveBuffer())
        second.receive(b"d")
        assert await transport.read(1) == b"bcd"
        second.protocol.eof_received()
        assert await transport.read(1) == b""
        assert transport.at_eof()

    run(work())


def test_the_socket_is_left_alone_while_too_much_waits() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport, ReceiveBuffer())
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        parts = 0
        while socket.reading:
            socket.receive(bytes(100_000))
            parts += 1
        assert parts == 11
        await waiting
        assert socket.reading
        for _ in range(parts - 1):
            assert len(await transport.read(3)) == 100_000

    run(work())


def test_writing_is_held_back_as_before() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport, ReceiveBuffer())
        socket.protocol.pause_writing()
        draining = asyncio.ensure_future(transport.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        socket.protocol.resume_writing()
        await draining

    run(work())


def test_only_plain_tcp_that_is_not_ours_yet_fits() -> None:
    async def work() -> None:
        transport = connected(Socket())
        assert fits(transport)
        RawReadProtocol(transport, ReceiveBuffer())
        assert not fits(transport)
        assert not fits(connected(Socket(tls=object())))
        assert not fits(tcp_transport())
        assert not fits(object())

    run(work())

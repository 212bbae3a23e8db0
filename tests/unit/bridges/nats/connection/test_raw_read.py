"""What comes in on a TCP connection of nats-py comes as it was read, all of it and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from mama_spark.bridges.nats.connection.raw_read import RawReadProtocol, fits
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
        RawReadProtocol(transport)
        first = asyncio.ensure_future(transport.read(10))
        await asyncio.sleep(0)
        one, two = b"x" * 100_000, b"y" * 100_000
        socket.protocol.data_received(one)
        socket.protocol.data_received(two)
        assert await first is one
        assert await transport.read(10) is two

    run(work())


def test_what_came_before_and_to_who_waits_at_the_reader_comes_first() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        waiting = asyncio.ensure_future(transport.read(3))  # as the loop of the client does before we come
        await asyncio.sleep(0)
        RawReadProtocol(transport)
        socket.protocol.data_received(b"abcd")
        assert await waiting == b"abc"
        socket.protocol.data_received(b"ef")
        assert await transport.read(3) == b"def"
        socket.protocol.data_received(b"gh")
        assert not transport.at_eof()
        assert await transport.read(3) == b"gh"

    run(work())


def test_the_end_comes_behind_all_data() -> None:
    """The server says why before it closes."""

    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport)
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        socket.protocol.data_received(b"-ERR 'why'\r\n")
        socket.protocol.eof_received()
        assert await waiting == b"-ERR 'why'\r\n"
        assert transport.at_eof()
        assert await transport.read(3) == b""
        later = connected(socket := Socket())
        RawReadProtocol(later)
        waiting = asyncio.ensure_future(later.read(3))
        await asyncio.sleep(0)
        socket.protocol.data_received(b"a")
        await waiting
        socket.protocol.data_received(b"b")
        socket.protocol.eof_received()
        assert not later.at_eof()
        assert await later.read(3) == b"b"

    run(work())


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")], ids=["closed", "reset"])
def test_who_waits_hears_of_the_end(error: Exception | None) -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport)
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
        RawReadProtocol(transport)
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        first.protocol.data_received(b"old")
        first.protocol.data_received(b"older")
        first.protocol.connection_lost(None)
        await waiting
        connected(second := Socket(), transport)
        second.protocol.data_received(b"INFO\r\nPONG\r\nabc")
        assert await transport.readline() == b"INFO\r\n"
        assert await transport.readline() == b"PONG\r\n"
        assert not transport.at_eof()
        assert await transport.read(1) == b"a"
        assert fits(transport)
        RawReadProtocol(transport)
        second.protocol.data_received(b"d")
        assert await transport.read(1) == b"bcd"
        second.protocol.eof_received()
        assert await transport.read(1) == b""
        assert transport.at_eof()

    run(work())


def test_the_socket_is_left_alone_while_too_much_waits() -> None:
    async def work() -> None:
        socket = Socket()
        transport = connected(socket)
        RawReadProtocol(transport)
        waiting = asyncio.ensure_future(transport.read(3))
        await asyncio.sleep(0)
        parts = 0
        while socket.reading:
            socket.protocol.data_received(bytes(100_000))
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
        RawReadProtocol(transport)
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
        RawReadProtocol(transport)
        assert not fits(transport)
        assert not fits(connected(Socket(tls=object())))
        assert not fits(tcp_transport())
        assert not fits(object())

    run(work())

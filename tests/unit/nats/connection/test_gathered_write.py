"""What goes out on a TCP connection of nats-py leaves in order and whole, from the buffers in which it lies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlparse

import pytest
from mama_spark.nats.connection.gathered_write import GatheredWriter, fits
from mama_spark.nats.connection.nats_py_compat import stream_of
from mama_spark.nats.connection.raw_read import RawReadProtocol
from mama_spark.nats.protocol.receive_buffer import ReceiveBuffer
from nats.aio.transport import TcpTransport

_LARGE = memoryview(bytes(range(256)) * 4_096 * 20)  # more than a socket takes at once


class Peer:
    """A connection of nats-py's transport, and its other end, which reads when it is asked to."""

    def __init__(self, transport: Any, far: socket.socket) -> None:
        self.transport, self.far = transport, far
        self.writer = GatheredWriter(transport)
        RawReadProtocol(transport, ReceiveBuffer(), self.writer.lost)

    async def receive(self, n: int) -> bytes:
        got = bytearray()
        while len(got) < n:
            part = await asyncio.get_running_loop().sock_recv(self.far, 1 << 20)
            if not part:
                break
            got += part
        return bytes(got)


@contextlib.asynccontextmanager
async def connected(transport: Any = None) -> AsyncIterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = TcpTransport() if transport is None else transport  # type: ignore[no-untyped-call]
        url = urlparse(f"nats://127.0.0.1:{server.getsockname()[1]}")
        await transport.connect(url, 1 << 15, 5)
        far, _ = server.accept()
    far.setblocking(False)
    with far:
        assert fits(transport)
        try:
            yield Peer(transport, far)
        finally:
            transport.close()
            with contextlib.suppress(OSError):
                await transport.wait_closed()


def test_pieces_arrive_whole_and_in_order_however_little_the_socket_takes() -> None:
    async def work() -> None:
        async with connected() as peer:
            pieces: list[Any] = [b"PUB a 3\r\n", memoryview(b"abc"), b"", _LARGE, bytearray(b"\r\n")] + [
                b"%d," % i for i in range(5_000)
            ]
            peer.transport.writelines(pieces)
            peer.transport.write(b"PING\r\n")
            expected = b"".join(pieces) + b"PING\r\n"
            drained = asyncio.ensure_future(peer.transport.drain())
            await asyncio.sleep(0)
            assert not drained.done(), "the peer has read nothing"
            assert await peer.receive(len(expected)) == expected
            await drained

    asyncio.run(work())


def test_what_asyncio_has_queued_goes_first() -> None:
    async def work() -> None:
        async with connected() as peer:
            queued = stream_of(peer.transport)[1]
            assert queued is not None
            queued.write(bytes(_LARGE))
            assert queued.get_write_buffer_size()
            peer.transport.writelines([b"second", b" third"])
            got = await peer.receive(len(_LARGE) + 12)
            assert got[: len(_LARGE)] == _LARGE
            assert got[len(_LARGE) :] == b"second third"

    asyncio.run(work())


def test_what_was_drained_arrives_before_the_end_and_a_peer_that_reads_nothing_holds_up_no_end() -> None:
    async def work() -> None:
        async with connected() as peer:
            peer.transport.writelines([_LARGE, b"last"])
            received = asyncio.ensure_future(peer.receive(len(_LARGE) + 5))
            await peer.transport.drain()
            peer.transport.close()
            assert await received == bytes(_LARGE) + b"last"
        async with connected() as peer:
            peer.transport.writelines([_LARGE])
            peer.transport.close()
            await asyncio.wait_for(peer.transport.wait_closed(), 30)

    asyncio.run(work())


def test_who_drains_hears_that_the_connection_broke() -> None:
    async def work() -> None:
        async with connected() as peer:
            peer.transport.writelines([_LARGE])
            drained = asyncio.ensure_future(peer.transport.drain())
            await asyncio.sleep(0)
            peer.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.far.close()  # resets
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(drained, 30)
            peer.transport.writelines([b"for nobody"])

    asyncio.run(work())


def test_no_descriptor_stays_open_that_keeps_the_connection() -> None:
    async def work() -> None:
        async with connected() as peer:
            peer.transport.write(b"x")
            peer.transport.close()
            assert await peer.receive(2) == b"x", "the peer sees the end behind what was written"

    asyncio.run(work())


def test_the_next_connection_of_a_transport_is_written_by_its_own_writer() -> None:
    async def work() -> None:
        transport: Any = TcpTransport()  # type: ignore[no-untyped-call]
        async with connected(transport) as first:
            first.transport.writelines([_LARGE])
        async with connected(transport) as second:
            transport.writelines([b"a", b"b"])
            await transport.drain()
            assert await second.receive(2) == b"ab"
        stale = first.writer
        async with connected(transport) as third:
            stale.writelines([b"through ", b"an old one"])
            await stale.drain()
            assert await third.receive(18) == b"through an old one"

    asyncio.run(work())

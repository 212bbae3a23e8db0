"""What becomes of bytes that the system has taken: whether they move on, and whether they arrive after the end."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest
from mama_spark.nats.connection.nonblocking_socket import NonBlockingSocket
from mama_spark.nats.protocol.server_pool import Server
from mama_spark.testing.waiting import TIMEOUT, eventually

MANY = 16 << 20  #: bytes: more than the buffers of two systems


@pytest.fixture
def pair() -> Iterator[tuple[NonBlockingSocket, socket.socket]]:
    """Ours, and the other end, which reads nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = NonBlockingSocket(Server.of(f"127.0.0.1:{server.getsockname()[1]}"))
        theirs, _ = server.accept()
        with theirs:
            theirs.settimeout(TIMEOUT)

            def connected() -> bool:
                ours.flush()
                return ours.connected

            eventually(connected, "it is connected")
            yield ours, theirs
            ours.close()


def write(ours: NonBlockingSocket, size: int) -> None:
    ours.write([bytes(size)], size)
    ours.flush()


def take(ours: NonBlockingSocket, theirs: socket.socket, size: int) -> None:
    while size:
        size -= len(theirs.recv(min(size, 1 << 20)))
        ours.flush()


def test_what_is_on_its_way_moves_as_long_as_the_other_end_takes_some(
    pair: tuple[NonBlockingSocket, socket.socket],
) -> None:
    ours, theirs = pair
    write(ours, MANY)
    ours.watch()
    for _ in range(3):
        before = ours.moved()
        take(ours, theirs, MANY // 4)
        eventually(lambda: ours.moved() > before, "it moves")  # noqa: B023
    take(ours, theirs, MANY // 4)
    last = eventually(lambda: ours.moved() == 2 * MANY and ours.moved(), "all of it is there")
    write(ours, 1000)
    take(ours, theirs, 1000)
    assert ours.moved() == last, "what came later does not count"


def test_a_way_moves_also_while_a_record_of_tls_is_not_there_as_a_whole(
    pair: tuple[NonBlockingSocket, socket.socket],
) -> None:
    ours, theirs = pair
    ours.start_tls(ssl.create_default_context())
    ours.watch()
    before = ours.moved()
    theirs.sendall(b"\x16\x03\x03\x40\x00part of a record")
    eventually(lambda: ours.read() == b"" and ours.moved() > before, "it moves")


@pytest.mark.parametrize("end", ["orderly", "reset", "killed"])
def test_what_the_system_has_not_sent_arrives_only_after_an_orderly_end(
    pair: tuple[NonBlockingSocket, socket.socket], end: str
) -> None:
    ours, theirs = pair
    write(ours, MANY)
    assert ours.unsent > 0
    reset = end != "orderly"
    if end == "killed":
        ours.discard_unsent(True)
        ours.forget()  # as the system does
    else:
        ours.close(reset)
    came = 0
    try:
        while data := theirs.recv(1 << 20):
            came += len(data)
    except ConnectionResetError:
        assert reset
    assert (came < ours.written) == reset

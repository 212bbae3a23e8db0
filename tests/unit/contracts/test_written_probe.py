"""Whether all was written that a ZeroMQ context has sent."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import pytest
import zmq
from mama_spark.contracts.zmq_connections import WrittenProbe, connection_of, end_context, ended, open_context
from mama_spark.testing.waiting import eventually

from tests.support.held_zmq import held
from tests.support.tables import each


def test_what_a_thread_that_stands_still_has_to_write_is_not_written() -> None:
    """The system would take it."""
    context, readers = open_context(), zmq.Context()
    sender, reader, probe = context.socket(zmq.XPUB), readers.socket(zmq.SUB), WrittenProbe(context)
    port = sender.bind_to_random_port("tcp://127.0.0.1")
    reader.subscribe(b"A")
    reader.connect(f"tcp://127.0.0.1:{port}")
    connection = connection_of(sender.recv(copy=False))
    assert connection is not None
    eventually(lambda: probe.all_written({connection}), "nothing was sent")
    with held(context):
        sender.send(b"A1")
        assert not any(probe.all_written({connection}) for _ in range(3))
    eventually(lambda: probe.all_written({connection}), "it goes on")
    assert reader.recv() == b"A1"
    readers.destroy(linger=0)
    probe.close()
    assert end_context(context, [sender], 60.0)


def test_where_the_thread_writes_more_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as open_:
        listener = open_.enter_context(socket.create_server(("127.0.0.1", 0)))
        reader = open_.enter_context(socket.create_connection(listener.getsockname()))
        writer = open_.enter_context(listener.accept()[0])
        context = zmq.Context()
        probe = WrittenProbe(context)
        open_.callback(context.destroy)
        connections = [(writer.fileno(), reader.getsockname())]
        given = iter([b"", b"x", b"", b"", b"x" * 8192])
        monkeypatch.setattr(probe, "_pass", lambda: writer.send(next(given, b"")) >= 0)
        assert [probe.all_written(connections) for _ in range(4)] == [False, True, False, True]
        writer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while writer.send(b"x" * 65536):
                pass
        assert not probe.all_written(connections)


@each("error, is_gone", [(errno.EMFILE, False), (errno.EBADF, True)])
def test_a_connection_that_cannot_be_looked_at_is_not_one_that_has_ended(
    error: int, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(error, "")

    context = open_context()
    with contextlib.closing(WrittenProbe(context)) as probe, monkeypatch.context() as patch:
        eventually(lambda: probe.all_written([(-1, None)]), "its thread answers")
        patch.setattr(os, "dup", refuse)
        if is_gone:
            eventually(lambda: probe.all_written([(-1, None)]), "it has ended")
        else:
            assert not any(probe.all_written([(-1, None)]) for _ in range(3))
    context.destroy()


def test_a_descriptor_that_is_something_else_now_leaves_no_copy_behind() -> None:
    reading, writing = os.pipe()
    assert ended([(reading, ("127.0.0.1", 1))])
    os.close(reading)
    with pytest.raises(BrokenPipeError):  # nobody can read it any more
        os.write(writing, b"x")
    os.close(writing)

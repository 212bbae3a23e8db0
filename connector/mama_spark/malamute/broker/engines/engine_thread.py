"""Drives one engine in a thread of its own, behind inproc sockets (ML-04, ML-05, ML-08, ML-16).

The stream has two sockets: a PAIR pipe for commands to the engine, and a PUSH from the engine to the one PULL of the
server. Frames are expensive, so commands and deliveries are passed as **batches of references**: a list in a queue in
memory, announced by one frame on the socket. Commands made of strings only (VERBOSE, TRAFFIC, $TERM) are frames as the
specification names them.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from itertools import count

import zmq

from mama_spark.malamute.zmq_fd_poller import readable

from .commands import EngineCommand
from .engine_actor import EngineActor

BATCH = b""  #: the frame that announces a batch
READY = b"\0"  #: the engine has started
#: Of pipes: an address that another stream has just closed may still be bound for a moment.
_NUMBERS = count()


def inproc_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket without high-water marks: its users limit the queued octets."""
    made = context.socket(kind)
    made.set_hwm(0)
    made.linger = 0
    return made


class EngineThread:
    """The thread, and the server's end of its pipe. See :class:`~.engine_handle.EngineDriver`.

    :raises zmq.ZMQError: no more sockets or files
    :raises RuntimeError: no more threads
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: bytes, actor: EngineActor) -> None:
        self._context = context
        self._name = name
        self._actor = actor
        self._inbox: deque[list[EngineCommand]] = deque()
        self._push: zmq.Socket[bytes] | None = None
        endpoint = f"inproc://mama-stream-{next(_NUMBERS)}"
        self._pipe = inproc_socket(context, zmq.PAIR)
        self._pipe.bind(endpoint)
        try:
            theirs = inproc_socket(context, zmq.PAIR)
        except zmq.ZMQError:
            self._pipe.close(0)
            raise
        theirs.connect(endpoint)
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), name=f"stream-{name.decode('utf-8', 'replace')}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no more threads
            theirs.close(0)
            self._pipe.close(0)
            raise

    # --- the server's end ----------------------------------------------------------------------------------------

    def post(self, batch: list[EngineCommand]) -> None:
        self._inbox.append(batch)
        with suppress(zmq.Again):  # the engine has ended; its last report has the reason
            self._pipe.send(BATCH, zmq.NOBLOCK)

    def send(self, *frames: bytes) -> None:
        with suppress(zmq.Again):
            self._pipe.send_multipart(frames, zmq.NOBLOCK)

    @property
    def batches(self) -> int:
        return len(self._inbox)

    def wait_started(self, timeout: float) -> bool:
        return bool(self._pipe.poll(int(timeout * 1000))) and self._pipe.recv() == READY

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait_ended(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return self.ended

    def close(self) -> None:
        self._pipe.close(0)

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self, pipe: zmq.Socket[bytes]) -> None:
        actor = self._actor
        try:
            actor.start()
            pipe.send(READY)
            self._loop(pipe)
            actor.close()
        except Exception as e:  # noqa: BLE001 whatever an engine raises ends its stream, and nothing else
            actor.fail(e)
        finally:
            with suppress(zmq.ZMQError):  # the broker may have abandoned this engine
                pipe.send(b"ended", zmq.NOBLOCK)
                self._send_last_report(pipe)
            pipe.close(0)

    def _loop(self, pipe: zmq.Socket[bytes]) -> None:
        actor, inbox = self._actor, self._inbox
        due: float | None = None
        fresh = False  # a report was just sent: do not delay its receiver by polling the socket
        while True:
            if due is not None and not (len(inbox) if fresh else readable(pipe, due)):
                due, fresh = actor.work(), False
                self._send_reports()
                continue
            first = pipe.recv()
            due, fresh = 0.0 if actor.works else None, True
            if first == BATCH:
                actor.run_batch(inbox.popleft())
            else:
                rest = pipe.recv_multipart() if pipe.getsockopt(zmq.RCVMORE) else ()
                if not actor.run_frames([first, *rest]):
                    return
            self._send_reports()

    def _send_reports(self) -> None:
        count = self._actor.take_reports()
        if count:
            self._announce(count)

    def _announce(self, reports: int) -> None:
        if self._push is None:
            assert self._actor.endpoint is not None
            self._push = inproc_socket(self._context, zmq.PUSH)
            self._push.connect(self._actor.endpoint)
        for _ in range(reports):
            self._push.send(self._name)

    def _send_last_report(self, pipe: zmq.Socket[bytes]) -> None:
        actor = self._actor
        while actor.failed and actor.endpoint is None:
            frames = pipe.recv_multipart()
            if frames[0] != BATCH and not actor.run_frames(frames):
                return
        self._send_reports()
        if self._push is not None:
            self._push.close(1000)

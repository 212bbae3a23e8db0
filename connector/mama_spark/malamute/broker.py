"""The broker: a ROUTER socket around the server machine, and an engine per stream.

One thread owns the sockets and the machine and obeys it; each stream's engine has a thread of its own. A round of the
loop reads what clients sent (at most so many messages and octets), hands each engine its commands as one batch, passes
on what engines said, and sends. Neither clients nor streams can starve the other.

Nothing grows without bound: a client's socket gets a few messages, and what it does not take waits in the machine's
queue for this client, which has a limit in octets and a policy; while an engine is behind, nothing more is read, so
that TCP holds the senders.
"""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import zmq

from ..errors import LoopDied, MamaError, Unavailable
from .clients import Client, Frames, Settings
from .engines import Delivery, engine_class, holds
from .engines.actor import Died, Report, Returned, Stream, Taken, Traffic
from .events import BrokerEvent, encode
from .patterns import Pattern
from .security import Guard, Security
from .server_machine import ServerMachine

log = logging.getLogger(__name__)

#: One round reads at most this much from clients: enough that a batch is worth its wake-up, little enough that the
#: answers to the others do not wait for it.
ROUND_MESSAGES = 500
ROUND_OCTETS = 1024 * 1024
#: Rounds that an engine may be behind before reading stops.
BEHIND = 64
#: Events that wait for the start of the engine of their stream; beyond, they are counted only.
EVENTS_AHEAD = 10_000
#: Seconds that an engine may take to start, and all of them together to end.
START = 120.0
ENDING = 30.0
#: Seconds until a client whose socket took no more is tried again.
RETRY = 0.005
#: Sockets of one stream (and open files: each has an event descriptor), and files kept for clients and the rest.
_SOCKETS = 3
_FILES = 2048
_MORE_NOW = zmq.SNDMORE | zmq.NOBLOCK

#: Contexts of brokers one of whose engines does not end: to end a context, also by forgetting it, would wait for it.
_KEPT: list[zmq.Context[zmq.Socket[bytes]]] = []


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Streams whose name the pattern matches get this engine; the first that matches counts."""

    pattern: bytes
    engine: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """:ivar bind: endpoint; with port ``*`` or 0 the system chooses
    :ivar engines: for streams by name; others are ``simple``
    :ivar high_water: messages that ZeroMQ may hold for one client, in each direction; beyond, TCP and our queues hold
    :ivar max_message: octets of one frame; a client that sends a larger one is disconnected
    :ivar linger: seconds that a clean stop waits for clients to take what is theirs
    :ivar security: who may connect
    """

    bind: str = "tcp://127.0.0.1:9999"
    machine: Settings = field(default_factory=Settings)
    engines: tuple[EngineChoice, ...] = ()
    high_water: int = 1000
    max_message: int = 64 * 1024 * 1024
    linger: float = 5.0
    security: Security = field(default_factory=Security)


class Broker:
    """Start it, stop it; a context manager does both.

    :param on_events: is given what happened to clients and streams (kind, address, stream, detail), in the broker's
        thread
    :param encode: makes the messages of the stream of events (:mod:`.events`), in the broker's thread
    """

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        on_events: Callable[[list[tuple[str, bytes, bytes, bytes]]], object] | None = None,
        encode: Callable[[BrokerEvent], bytes] = encode,
    ) -> None:
        self._encode = encode
        self.settings = settings or BrokerSettings()
        self.endpoint = self.settings.bind
        self.error: BaseException | None = None
        self._choices = [(Pattern(choice.pattern), choice) for choice in self.settings.engines]
        self._on_events = on_events
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._control: zmq.Socket[bytes] | None = None
        self._guard: Guard | None = None
        self._loop: _Loop | None = None

    def __repr__(self) -> str:
        alive = self._thread is not None and self._thread.is_alive()
        return f"<Broker {self.endpoint} {self._loop.machine if alive and self._loop else 'stopped'}>"

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when clients can connect.

        :raises Unavailable: the endpoint cannot be bound
        """
        machine = _within_limits(self.settings.machine)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, machine.streams * _SOCKETS + 16)
        self._control = self._context.socket(zmq.PAIR)
        control = f"inproc://mama-broker-{id(self):x}"
        self._control.bind(control)
        self._loop = _Loop(
            replace(self.settings, machine=machine), self._context, control, self._choose, self._on_events, self._encode
        )
        try:
            self._guard = Guard(self._context, self.settings.security)
            self.endpoint = self._loop.bind(self._guard)
        except zmq.ZMQError as e:
            self._loop.close()
            self._end()
            raise Unavailable(f"cannot bind {self.settings.bind}: {e}") from e
        self._thread = threading.Thread(target=self._run, name="mama-broker", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Take no more, let the engines finish and clients have what is theirs; idempotent.

        :raises LoopDied: the broker had ended by itself
        """
        if self._thread is None or self._context is None or self._control is None:
            return
        with suppress(zmq.Again):
            self._control.send(b"stop", zmq.NOBLOCK)
        self._thread.join(timeout)
        self._thread = None
        self._end()
        if self.error is not None:
            raise LoopDied(f"the broker ended with {self.error!r}") from self.error

    def _end(self) -> None:
        assert self._context is not None
        assert self._control is not None
        if self._guard is not None:
            self._guard.stop()
        self._control.close(0)
        if self._loop is not None and self._loop.hangs():
            _KEPT.append(self._context)
        else:
            self._context.term()

    def clients(self) -> list[bytes]:
        """Addresses of connected clients that have one, sorted."""
        return sorted(self._loop.machine.addresses.copy()) if self._loop else []

    def streams(self) -> list[bytes]:
        """Names of all streams, sorted; a stream outlives its clients."""
        return sorted(self._loop.streams.copy()) if self._loop else []

    def counters(self) -> dict[str, int]:
        return dict(self._loop.machine.counters) if self._loop else {}

    def _choose(self, stream: bytes) -> tuple[str, Mapping[str, Any]]:
        for pattern, choice in self._choices:
            if pattern.search(stream):
                return choice.engine, choice.settings
        return "simple", {}

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except Exception as e:  # told by stop
            self.error = e
            log.error("the broker ended: %s", e, exc_info=e)
        finally:
            self._loop.close()


def _within_limits(settings: Settings) -> Settings:
    """As many streams as the system's limit of open files allows, the soft limit raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = settings.streams * _SOCKETS + _FILES
    if soft != resource.RLIM_INFINITY and soft < want:
        soft = want if hard == resource.RLIM_INFINITY else min(want, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= want:
        return settings
    streams = max(1, (soft - _FILES) // _SOCKETS)
    log.warning("%d open files allow %d streams, not %d; see ulimit -n", soft, streams, settings.streams)
    return replace(settings, streams=streams)


class _Loop:
    """The broker's thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        context: zmq.Context[zmq.Socket[bytes]],
        control: str,
        choose: Callable[[bytes], tuple[str, Mapping[str, Any]]],
        on_events: Callable[[list[tuple[str, bytes, bytes, bytes]]], object] | None,
        encode: Callable[[BrokerEvent], bytes],
    ) -> None:
        self.encode = encode
        self.events_lost = 0
        self.settings = settings
        self.context = context
        self.choose = choose
        self.on_events = on_events
        self.machine = ServerMachine(settings.machine, self._holds)
        self.streams: dict[bytes, Stream] = {}
        self.blocked: dict[Client, None] = {}
        self.behind: list[Stream] = []
        self.opening: dict[bytes, float] = {}  # streams whose engine has not started, and until when it must
        self.early: dict[bytes, list[tuple[Any, ...]]] = {}  # commands for them
        self.abandoned: list[Stream] = []
        self.stopping = False
        self.traffic = Traffic(context)
        self.control = context.socket(zmq.PAIR)
        self.control.connect(control)
        self.router = context.socket(zmq.ROUTER)
        self.router.set_hwm(settings.high_water)
        self.router.linger = 0  # else what a vanished client did not read stays in here, and its pipe full
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.MAXMSGSIZE, settings.max_message)

    def bind(self, guard: Guard) -> str:
        guard.secure(self.router)
        self.router.bind(self.settings.bind.replace("mlp://", "tcp://", 1))
        return self.router.get_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        reading, idle = zmq.Poller(), zmq.Poller()
        for socket in (self.control, self.traffic.socket):
            reading.register(socket, zmq.POLLIN)
            idle.register(socket, zmq.POLLIN)
        reading.register(self.router, zmq.POLLIN)
        while not self.stopping:
            self.behind = [stream for stream in self.behind if stream.batches >= BEHIND]
            ready = dict((idle if self.behind else reading).poll(self._patience()))
            if self.control in ready:
                self.stopping = True
            now = time.monotonic()
            if self.router in ready:
                self._read(now)
            self.machine.expire(now)
            if self.opening:
                self._give_up(now)
            self._obey(self.traffic.socket in ready)
        self._finish()

    def _patience(self) -> int:
        """Milliseconds until something is due."""
        if self.machine.orders or self.machine.out:  # what came up while sending, such as credit for engines
            return 0
        if self.blocked or self.behind:
            return int(RETRY * 1000)
        due = self.machine.next_expiry()
        return 1000 if due is None else max(0, min(1000, int((due - time.monotonic()) * 1000) + 1))

    def _read(self, now: float) -> None:
        receive, recv, option = self.machine.receive, self.router.recv, self.router.getsockopt
        octets = 0
        for _ in range(ROUND_MESSAGES):
            try:
                identity = recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            frames = [recv()] if option(zmq.RCVMORE) else []
            while option(zmq.RCVMORE):
                frames.append(recv())
            receive(identity, frames, now)
            octets += sum(map(len, frames))
            if octets > ROUND_OCTETS:
                return

    def _obey(self, reports: bool) -> None:
        machine = self.machine
        self._post()
        if reports:
            for _ in range(len(self.streams) + 1):
                taken = self.traffic.take()
                if taken is None:
                    break
                self._report(*taken)
        self._send()
        self._retry()
        if machine.events:
            events, machine.events = machine.events, []
            if self.on_events is not None:
                self.on_events(events)
            self._announce(events)

    def _announce(self, events: list[tuple[str, bytes, bytes, bytes]]) -> None:
        """Publish on the reserved stream, which exists once it is read or if it is stored; never wait for it."""
        machine, name = self.machine, self.settings.machine.events
        if not name or (name not in machine.streams and not self._stores(name)):
            return
        # what happens to this very stream cannot be told there, and would make it anew for ever
        events = [event for event in events if event[2] != name or event[0] != "STREAM_LOST"]
        stream = self.streams.get(name)
        if len(self.early.get(name, ())) > EVENTS_AHEAD or (stream is not None and stream.batches > BEHIND // 2):
            self.events_lost += len(events)
            return
        if self.events_lost:
            events = [("EVENTS_LOST", b"", b"", b"%d" % self.events_lost), *events]
            self.events_lost = 0
        now = time.time_ns() // 1000
        for values in events:
            event = BrokerEvent(*values, now)
            try:
                machine.publish(name, event.subject, [self.encode(event)])
            except Exception as e:  # noqa: BLE001 the encoder is the caller's
                log.error("an event cannot be encoded: %s", e)
        self._post()

    # --- engines -------------------------------------------------------------------------------------------------

    def _post(self) -> None:
        while self.machine.orders:
            orders, self.machine.orders = self.machine.orders, {}
            for name, batch in orders.items():
                stream = self.streams.get(name) or self._open(name)
                if stream is None:
                    continue
                if name in self.opening:
                    self.early[name] += batch
                    continue
                stream.post(batch)
                if stream.batches >= BEHIND:
                    self.behind.append(stream)

    def _started(self, name: bytes) -> None:
        del self.opening[name]
        early = self.early.pop(name)
        if early:
            self.streams[name].post(early)

    def _give_up(self, now: float) -> None:
        """Engines that do not come to an end with starting."""
        for name, until in list(self.opening.items()):
            if until <= now:
                log.error("the engine of stream %r does not start", name)
                stream = self.streams[name]
                self._forget(stream, "the engine does not start")
                self.abandoned.append(stream)
                stream.destroy(0.0)

    def _stores(self, name: bytes) -> bool:
        try:
            return engine_class(self.choose(name)[0]).stored
        except MamaError:  # told when the stream is opened
            return False

    def _holds(self, name: bytes) -> bool:
        try:
            return holds(engine_class(self.choose(name)[0]))
        except MamaError:  # told when the stream is opened
            return False

    def _open(self, name: bytes) -> Stream | None:
        engine, settings = self.choose(name)
        try:
            stream = Stream(self.context, name, engine, settings, None)
        except (MamaError, zmq.ZMQError, RuntimeError) as e:  # also: no more sockets, files or threads
            log.error("stream %r cannot be opened: %s", name, e)
            self.machine.lost(name, str(e))
            return None
        self.streams[name] = stream
        self.opening[name] = time.monotonic() + START
        self.early[name] = []
        self.traffic.add(stream)
        self.machine.opened(name, stream.stored)
        return stream

    def _report(self, stream: Stream, report: Report) -> None:
        machine, name = self.machine, stream.name
        if name in self.opening and not isinstance(report[0], Died):
            self._started(name)
        run: list[Delivery] = []
        for one in report:
            if isinstance(one, Delivery):
                run.append(one)
                continue
            if run:
                machine.delivered(name, run)
                run = []
            if isinstance(one, Taken):
                machine.taken(name, one.error, one.runs)
            elif isinstance(one, Returned):
                machine.returned(name, one.client, one.amount)
            elif isinstance(one, Died):
                self._lost(stream, one.error)
        machine.delivered(name, run)

    def _lost(self, stream: Stream, error: BaseException) -> None:
        self._forget(stream, str(error))
        stream.destroy()

    def _forget(self, stream: Stream, reason: str) -> None:
        self.machine.lost(stream.name, reason)
        self.traffic.remove(stream)
        for table in (self.streams, self.opening, self.early):
            table.pop(stream.name, None)

    # --- clients -------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        machine = self.machine
        while machine.out:
            out, machine.out = machine.out, []
            for client, frames in out:
                if isinstance(client, bytes):
                    self._take(client, frames)
                elif (client.blocked or not self._take(client.identity, frames)) and client.alive:
                    machine.block(client, frames)
                    self.blocked[client] = None

    def _take(self, identity: bytes, frames: Frames) -> bool:
        """True if the socket took it, or never will: nobody of this identity is connected any more."""
        send = self.router.send
        try:
            send(identity, _MORE_NOW)
        except zmq.Again:
            return False
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:
                raise
            return True
        for frame in frames[:-1]:  # a message of which the socket took the first part fits whole
            send(frame, zmq.SNDMORE)
        send(frames[-1])
        return True

    def _retry(self) -> None:
        machine = self.machine
        for client in list(self.blocked):
            while client.alive and (frames := machine.next_for(client)) is not None:
                if not self._take(client.identity, frames):
                    machine.put_back(client, frames)
                    break
            else:
                del self.blocked[client]
                machine.unblock(client)

    # --- the end -------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """What was accepted goes through the engines and to the clients, as far as they take it in time."""
        self._post()
        for name, early in self.early.items():
            self.streams[name].post(early)
        self.early.clear()
        self.opening.clear()
        end = time.monotonic() + ENDING
        for stream in self.streams.values():
            stream.destroy(max(0.0, end - time.monotonic()))
        while (taken := self.traffic.take()) is not None:
            self._report(*taken)
        end = time.monotonic() + self.settings.linger
        self._send()
        while self.blocked and time.monotonic() < end:
            time.sleep(RETRY)
            self._retry()
            self._send()
        self.router.close(int(max(0.0, end - time.monotonic()) * 1000))

    def hangs(self) -> bool:
        return any(not stream.ended for stream in (*self.streams.values(), *self.abandoned))

    def close(self) -> None:
        for stream in self.streams.values():
            stream.destroy(0.0 if self.stopping else ENDING)
        self.traffic.close()
        self.control.close(0)
        self.router.close(0)

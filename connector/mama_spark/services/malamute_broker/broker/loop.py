"""The broker's thread: it owns the sockets and the machine, and obeys it.

A round of the loop reads what clients sent (at most so many messages and octets), hands each engine its commands as one
batch, passes on what engines said, and sends. Neither clients nor streams can starve the other.

Nothing grows without bound: a client's socket gets a few messages, and what it does not take waits in the machine's
queue for this client, which has a limit in octets and a policy; while an engine is behind and goes on, nothing more is
read, so that TCP holds the senders; one that stands still has a backlog with a limit and a policy
(:mod:`mama_spark.services.malamute_broker.session.backlog`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import zmq

from mama_spark.errors import BackgroundTaskFailed, MamaError
from mama_spark.malamute.protocol.commands import BadFrame
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.malamute.zmq_fd_poller import ZmqFdPoller, readable, receive

from ..engines import Delivery, engine_class, holds
from ..engines.actor import (
    CommandDone,
    CreditReturned,
    DeliverySocket,
    EngineFailed,
    EngineStream,
    QueryAnswered,
    Report,
)
from ..engines.commands import EngineCommand
from ..session.backlog import BEHIND, COUNTED, Backlog, BacklogPolicy
from ..session.broker_events import BrokerEvent
from ..session.clients import ClientSession, Frames
from ..session.state_machine import ServerMachine
from .security import ZapHandler
from .settings import BrokerSettings
from .stream_catalog import StreamCatalog

log = logging.getLogger(__name__)

#: One round reads at most this much from clients: enough that a batch is worth its wake-up, little enough that the
#: answers to the others do not wait for it.
ROUND_MESSAGES = 500
ROUND_OCTETS = 1024 * 1024
#: Events that wait for the start of the engine of their stream; beyond, they are counted only.
EVENTS_AHEAD = 10_000
#: Seconds that an engine may take to start, and all of them together to end.
START = 120.0
ENDING = 30.0
#: Seconds from which a round is so long that what clients said meanwhile is yet to be read; idle, one takes a second.
DEAF = 1.5
#: Seconds until a client whose socket took no more is tried again.
RETRY = 0.005
#: A host that vanished says nothing, and nothing is sent to a client that expired: TCP itself has to find out, after a
#: minute of silence and six probes.
_KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 6}
_MORE, _MORE_NOW = zmq.SNDMORE, zmq.SNDMORE | zmq.NOBLOCK


def stores(engine: str) -> bool:
    """The engine of this name keeps messages."""
    try:
        return engine_class(engine).stored
    except MamaError:  # told when a stream is opened with it
        return False


class BrokerLoop:
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
        self.tally = dict.fromkeys(
            ("received_messages", "received_octets", "sent_messages", "sent_octets", "lost_events", "refused_logins"), 0
        )
        self.looks: deque[tuple[Callable[[BrokerLoop], Any], SimpleQueue[Any]]] = deque()
        self.guard: ZapHandler | None = None
        self.events_lost = 0
        self.settings = settings
        self.context = context
        self.choose = choose
        self.on_events = on_events
        choices = [(one.pattern, (one.engine, one.settings)) for one in settings.engines]
        self.machine = ServerMachine(settings.machine, self._holds, StreamCatalog(choices, choose))
        self.streams: dict[bytes, EngineStream] = {}
        self.blocked: dict[ClientSession, None] = {}
        self.pause = 1  # milliseconds until they are tried again
        self.backlogs: dict[bytes, Backlog] = {}
        self.held = False
        self.behind: dict[bytes, EngineStream] = {}  # those whose backlog is worth a look
        self.opening: dict[bytes, float] = {}  # streams whose engine has not started, and until when it must
        self.early: dict[bytes, list[EngineCommand]] = {}  # commands for them
        self.abandoned: list[EngineStream] = []
        self.stopping = False
        self.due = -math.inf  # when the machine has something to do by itself
        self.unread = self.untaken = True  # clients or engines may have said more, and no socket rings for it
        self.used = False  # the router was used for sending, so that it does not ring for what came meanwhile
        self.traffic = DeliverySocket(context)
        self.control = context.socket(zmq.PAIR)
        self.control.connect(control)
        self.router = context.socket(zmq.ROUTER)
        self.send_frame = super(zmq.Socket, self.router).send  # what Socket.send wraps, in half of its time
        self.router.set_hwm(settings.high_water)
        self.router.linger = 0  # else what a vanished client did not read stays in here, and its pipe full
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.MAXMSGSIZE, settings.max_message)
        for option, value in _KEEPALIVE.items():
            self.router.setsockopt(option, value)

    def bind(self, guard: ZapHandler) -> str:
        self.guard = guard
        guard.secure(self.router)
        self.router.bind(self.settings.bind.replace("mlp://", "tcp://", 1))
        return self.router.get_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        every, idle = (
            ZmqFdPoller(self.control, self.traffic.socket, self.router),
            ZmqFdPoller(self.control, self.traffic.socket),
        )
        self._hear()
        listened = time.monotonic()
        while not self.stopping:
            self.held = bool(self.behind) and self._holds_up(time.monotonic())
            ringing = (idle if self.held else every).wait(self._patience())
            now = self.machine.now = time.monotonic()
            if self.control in ringing:
                self._hear()
            if self.held or now - listened > DEAF:
                self.machine.forgive(now - listened)
            listened = now
            if not self.held and (self.unread or self.router in ringing):
                self._read(now)
            if now >= self.due or self.machine.rotating:
                self.machine.expire(now)
            if self.opening:
                self._give_up(now)
            self._obey(self.untaken or self.traffic.socket in ringing)
        self._finish()

    def _patience(self) -> int:
        """Milliseconds until something is due."""
        machine = self.machine
        due = machine.next_expiry()
        self.due = math.inf if due is None else due
        if self.untaken or (self.unread and not self.held) or machine.orders or machine.out:
            return 0
        if self.blocked or self.held:
            return self.pause
        return max(0, min(1000, int((self.due - time.monotonic()) * 1000) + 1)) if due is not None else 1000

    def _hear(self) -> None:
        while readable(self.control):
            if self.control.recv() == b"stop":
                self.stopping = True
            elif self.looks:
                view, answer = self.looks.popleft()
                self.tally["refused_logins"] = self.guard.refused if self.guard is not None else 0
                answer.put(view(self))

    def engine_of(self, stream: bytes) -> str:
        return self.choose(stream)[0]

    def _holds_up(self, now: float) -> bool:
        """Is an engine so far behind that nothing more is to be read, and worth waiting for?"""
        always = self.settings.machine.behind is BacklogPolicy.HOLD
        held = False
        for name, stream in list(self.behind.items()):
            backlog = self.backlogs[name]
            backlog.look(stream.batches, now)
            wait = always or backlog.keeps_pace(now)
            held |= wait and (len(backlog) >= BEHIND or backlog.full)
            if backlog.full and not wait:
                self.machine.full.add(name)
            else:
                self.machine.full.discard(name)
            if len(backlog) < COUNTED and not backlog.full:
                del self.behind[name]
        return held

    def _read(self, now: float) -> None:
        machine, recv = self.machine, self.router.recv
        octets = messages = 0
        machine.unpacked = 0
        self.unread = False
        while not self.unread:
            try:
                identity = recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            frames = receive(self.router)  # a ROUTER never gives less
            machine.receive(identity, frames, now)
            octets += sum(map(len, frames))
            messages += 1
            if messages == 1 and not readable(self.router):
                break
            self.unread = messages + machine.unpacked >= ROUND_MESSAGES or octets > ROUND_OCTETS
        self.tally["received_messages"] += messages + machine.unpacked
        self.tally["received_octets"] += octets

    def _obey(self, reports: bool) -> None:
        machine = self.machine
        self._post()
        self._hand_out(reports)
        self._send()
        if self.blocked:
            self._retry()
        if self.used:
            self.used = False
            self.unread = self.unread or readable(self.router)
        if machine.events:
            events, machine.events = machine.events, []
            if self.on_events is not None:
                self.on_events(events)
            self._announce(events)

    def _hand_out(self, reports: bool) -> None:
        """What engines said, at most one report each on average; a single one is on its way before another look."""
        left = len(self.streams) + 1
        while reports and left:
            taken = self.traffic.take()
            if taken is not None:
                self._report(*taken)
                self._send()
            reports = readable(self.traffic.socket)
            left -= 1
        self.untaken = reports

    def _announce(self, events: list[tuple[str, bytes, bytes, bytes]]) -> None:
        """Publish on the reserved stream, which exists once it is read or if it is stored; never wait for it."""
        machine, name = self.machine, self.settings.machine.events
        if not name or (name not in machine.streams and not stores(self.choose(name)[0])):
            return
        # what happens to this very stream cannot be told there, and would make it anew for ever
        events = [event for event in events if event[2] != name or event[0] != "STREAM_LOST"]
        stream = self.streams.get(name)
        if len(self.early.get(name, ())) > EVENTS_AHEAD or (stream is not None and stream.batches > BEHIND // 2):
            self.events_lost += len(events)
            self.tally["lost_events"] += len(events)
            return
        if self.events_lost:
            events = [("EVENTS_LOST", b"", b"", b"%d" % self.events_lost), *events]
            self.events_lost = 0
        now = time.time_ns() // 1000
        messages = []
        for values in events:
            event = BrokerEvent(*values, now)
            try:
                messages.append((event.subject, [self.encode(event)], Extension(headers=event.headers)))
            except Exception as e:  # noqa: BLE001 the encoder is the caller's
                log.error("an event cannot be encoded: %s", e)
        if messages:
            machine.publish(name, messages)
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
                self._hand(name, stream, batch)

    def _hand(self, name: bytes, stream: EngineStream, batch: list[EngineCommand]) -> None:
        backlog, now = self.backlogs[name], time.monotonic()
        backlog.look(stream.batches, now)
        backlog.posted(batch, now)
        stream.post(batch)
        if len(backlog) >= COUNTED or backlog.full:
            self.behind[name] = stream

    def _started(self, name: bytes) -> None:
        del self.opening[name]
        early = self.early.pop(name)
        if early:
            self._hand(name, self.streams[name], early)

    def _give_up(self, now: float) -> None:
        """Engines that do not come to an end with starting."""
        for name, until in list(self.opening.items()):
            if until <= now:
                log.error("the engine of stream %r does not start", name)
                stream = self.streams[name]
                self._forget(stream, "the engine does not start")
                self.abandoned.append(stream)
                stream.destroy(0.0)

    def _holds(self, name: bytes) -> bool:
        try:
            return holds(engine_class(self.choose(name)[0]))
        except MamaError:  # told when the stream is opened
            return False

    def _open(self, name: bytes) -> EngineStream | None:
        engine, settings = self.choose(name)
        try:
            self._spare(name)
            stream = EngineStream(self.context, name, engine, settings, None)
        except (MamaError, zmq.ZMQError, RuntimeError) as e:  # also: no more sockets, files or threads
            log.error("stream %r cannot be opened: %s", name, e)
            self.machine.lost(name, str(e))
            return None
        self.streams[name] = stream
        self.opening[name] = time.monotonic() + START
        self.early[name] = []
        self.backlogs[name] = Backlog(self.settings.machine.backlog)
        self.traffic.add(stream)
        self.machine.opened(name, stream.stored)
        return stream

    def _spare(self, name: bytes) -> None:
        """:raises BackgroundTaskFailed: an engine of the stream that did not start still has its thread, and may have
        its store"""
        for stream in self.abandoned:
            if stream.name == name:
                stream.destroy(0.0)
        self.abandoned = [stream for stream in self.abandoned if not stream.closed]
        if any(stream.name == name for stream in self.abandoned):
            raise BackgroundTaskFailed("an engine of the stream that did not start has not ended")

    def _report(self, stream: EngineStream, report: Report) -> None:
        try:
            self._told(stream, report)
        except BadFrame as e:
            log.error("the engine of stream %r delivers what no client can be sent: %s", stream.name, e)
            self._forget(stream, str(e))
            self.abandoned.append(stream)
            stream.destroy(0.5)  # one that is not busy ends at once

    def _told(self, stream: EngineStream, report: Report) -> None:
        machine, name = self.machine, stream.name
        if name in self.opening and not isinstance(report[0], EngineFailed):
            self._started(name)
        run: list[Delivery] = []
        for one in report:
            if isinstance(one, Delivery):
                run.append(one)
                continue
            if run:
                machine.delivered(name, run)
                run = []
            if isinstance(one, CommandDone):
                machine.taken(name, one.error, one.runs, one.position)
            elif isinstance(one, CreditReturned):
                machine.returned(name, one.client, one.amount)
            elif isinstance(one, QueryAnswered):
                machine.answered(name, one.client, one.answer, one.records)
            elif isinstance(one, EngineFailed):
                self._lost(stream, one.error)
        machine.delivered(name, run)

    def _lost(self, stream: EngineStream, error: BaseException) -> None:
        self._forget(stream, str(error))
        stream.destroy()

    def _forget(self, stream: EngineStream, reason: str) -> None:
        self.machine.lost(stream.name, reason)
        self.traffic.remove(stream)
        for table in (self.streams, self.opening, self.early, self.backlogs, self.behind):
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
        send = self.send_frame
        self.used = True
        try:
            send(identity, _MORE_NOW)
        except zmq.Again:
            return False
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:
                raise
            return True
        self.tally["sent_messages"] += 1
        self.tally["sent_octets"] += sum(map(len, frames))
        for frame in frames[:-1]:  # a message of which the socket took the first part fits whole
            send(frame, _MORE)
        send(frames[-1])
        return True

    def _retry(self) -> None:
        """Soon again while somebody takes something: who reads as fast as he can is blocked again and again."""
        machine = self.machine
        self.pause = min(self.pause + 1, int(RETRY * 1000))
        for client in list(self.blocked):
            while client.alive and (frames := machine.next_for(client)) is not None:
                if not self._take(client.identity, frames):
                    machine.put_back(client, frames)
                    break
                self.pause = 1
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
        return any(not stream.closed for stream in (*self.streams.values(), *self.abandoned))

    def close(self) -> None:
        for stream in (*self.streams.values(), *self.abandoned):
            stream.destroy(0.0 if self.stopping else ENDING)
        self.traffic.close()
        self.control.close(0)
        self.router.close(0)

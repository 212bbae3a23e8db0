"""Event server: the sockets and threads of an event source, and the lock of its event supplier.

It connects the :class:`GiopServer` (calls), the :class:`~mama_spark.tango.source.zmq_publisher.ZmqPublisher`
(heartbeats and events) and the :class:`~mama_spark.tango.source.event_supplier.EventSupplier` (decides what is sent).

One thread answers calls over TCP and runs the timers. A client that does not read its replies is disconnected when too
many bytes wait; a client that does not send GIOP gets a MessageError and is disconnected. A client never blocks other
clients or threads that push events.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from typing import Self

import zmq

from mama_spark.contracts.connection_pool import require_file_descriptors
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.options.urls import on_all_interfaces

from ..errors import Completed, DevFailed, SystemException, system_exception
from ..giop import messages
from ..giop.cdr import CdrError, CdrReader
from ..giop.messages import MessageAssembler
from ..idl.negotiation import EndpointPair
from ..topics import BadEndpoint, check_endpoint
from .device_servant import DeviceServant, locate_reply, reply, reply_exception
from .dserver_servant import Caller, Identity
from .event_channel import Frames
from .event_supplier import EventSupplier, SourceSettings
from .zmq_publisher import ZmqPublisher

logger = logging.getLogger(__name__)
_MAX_REQUEST = 1 << 20  #: largest size of a request in bytes; subscriptions have some hundreds
_MAX_UNSENT = 64 << 20  #: most bytes of replies that may wait for a client
_MAX_CLIENTS = 4096
_MAX_WAIT = 5.0
_FILE_DESCRIPTORS = 5  #: three of the event loop, the listener, and the first client


class _Client(asyncio.Protocol):
    """Connection of one client; when ``closing``, it ends as soon as all replies are sent."""

    def __init__(self, server: GiopServer) -> None:
        self.server, self.assembler = server, MessageAssembler(_MAX_REQUEST)
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(0)  # so that resume_writing means: all is sent
        if len(self.server.clients) >= _MAX_CLIENTS:
            self.transport.abort()
        else:
            self.server.clients.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.clients.discard(self)

    def resume_writing(self) -> None:
        if self.closing:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return  # discard further requests
        try:
            self.assembler.feed(data)
            self._answer_all()
        except Exception:
            logger.exception("a request to a Tango event source failed; the connection is closed")
            self.transport.abort()
        if self.closing and not self.transport.get_write_buffer_size():
            self.transport.close()
        self.server.run_timers()

    def _answer_all(self) -> None:
        while not self.closing:
            try:
                data = self.assembler.next_message()
                if data is None:
                    return
                message, reader = messages.decode(data)
            except CdrError:
                self._refuse(messages.MessageError())
                return
            self._answer(message, reader)
            if self.transport.get_write_buffer_size() > _MAX_UNSENT:
                self.transport.abort()  # the client does not read its replies
                return

    def _answer(self, message: messages.GiopMessage, reader: CdrReader) -> None:
        if isinstance(message, messages.LocateRequest):
            self.transport.write(locate_reply(message, self.server.handler.has(message.key)))
        elif isinstance(message, messages.GiopRequest):
            answer = self._reply(message, reader)
            if message.wants_reply:
                self.transport.write(answer)
        elif isinstance(message, messages.CloseConnection | messages.MessageError):
            self.closing = True
        elif not isinstance(message, messages.CancelRequest):
            self._refuse(messages.MessageError(message.minor, message.little))

    def _refuse(self, answer: messages.MessageError) -> None:
        self.transport.write(messages.encode(answer))
        self.closing = True

    def _reply(self, request: messages.GiopRequest, reader: CdrReader) -> bytes:
        client, local = (self.transport.get_extra_info(end)[0] for end in ("peername", "sockname"))
        try:
            return reply(request, self.server.handler.call(request, reader, client, local))
        except (DevFailed, SystemException) as error:
            return reply_exception(request, error)
        except Exception:
            logger.exception("the operation %s of a Tango event source failed", request.operation)
            return reply_exception(request, system_exception("INTERNAL", 0, Completed.MAYBE))


class GiopServer:
    """GIOP server. The constructor listens; :meth:`start` starts the thread.

    :param port: port to listen at; 0: the system chooses
    :raises OSError: the address or the port cannot be bound
    :raises Unavailable: too few file descriptors are left
    """

    def __init__(self, handler: EventServer, host: str, port: int) -> None:
        require_file_descriptors(_FILE_DESCRIPTORS, "an event source")
        self.handler = handler
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), backlog=256, family=family)
        self.port: int = self._listener.getsockname()[1]
        self.clients: set[_Client] = set()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"tango-source-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; waits until the thread has stopped."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
        else:
            self._listener.close()
            self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: _Client(self), sock=self._listener, backlog=256)
        self.run_timers()
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)
        # asyncio drops a connection that it accepts when its server is closed, and leaves the socket open
        if accepted := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.wait(accepted)
        server.close()
        for client in list(self.clients):
            client.transport.abort()
        await asyncio.sleep(0)  # in which their sockets are closed

    def run_timers(self) -> None:
        """Run the timers of the source that are due, and come back when the next one is."""
        try:
            wait = self.handler.tick()
        except Exception:
            logger.exception("a timer of a Tango event source failed")
            wait = 1.0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(
            _MAX_WAIT if wait is None else min(max(wait, 0.0), _MAX_WAIT), self.run_timers
        )


class EventServer:
    """Starts and stops the sockets of an event source, and sends its events.

    :ivar sent: number of messages that were passed to the event socket, duplicates included
    :ivar heard: number of these that a connection had subscribed to
    :raises ConfigError: an endpoint in ``advertise`` is invalid
    """

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self._supplier, self._lock = EventSupplier(settings), threading.RLock()
        self.host_name = (settings.host_name or socket.gethostname()).lower()
        self._host, self._ports = settings.host, (settings.port, settings.heartbeat_port, settings.event_port)
        self._advertise = tuple(settings.advertise)
        for endpoint in (end for one in self._advertise for end in _pair_of(one, (1, 1))):
            try:
                check_endpoint(endpoint)
            except BadEndpoint as error:
                raise ConfigError(f"this endpoint cannot be advertised: {error}") from None
        self._servant = DeviceServant(self._supplier, Identity(self.host_name, settings.hwm))
        self._publisher: ZmqPublisher | None = None
        self._giop_server: GiopServer | None = None
        self._event_ports = (0, 0)
        self.sent = self.heard = 0

    def start(self) -> Self:
        """Listen. May be called again after :meth:`close`; then counters start again, and values stay.

        :raises Unavailable: an address or a port cannot be bound
        """
        if self.running:
            return self
        giop_server: GiopServer | None = None
        try:
            host = "0.0.0.0" if on_all_interfaces(self._host) else socket.gethostbyname(self._host)
            giop_server = GiopServer(self, host, self._ports[0])
            publisher = ZmqPublisher(host, self._ports[1:], self.settings.hwm)
        except (OSError, zmq.ZMQError) as error:
            if giop_server is not None:
                giop_server.stop()
            raise Unavailable(f"an event source cannot listen at {self._host}, ports {self._ports}: {error}") from None
        with self._lock:
            self._publisher, self._giop_server, self._event_ports = publisher, giop_server, publisher.ports
            self._supplier.reset(f"{self.host_name}:{giop_server.port}")
        giop_server.start()
        if on_all_interfaces(self._host):
            logger.warning(
                "clients are served on all interfaces, and Tango has no login: whoever reaches this machine can read. "
                "Name one interface, or let a firewall decide"
            )
        return self

    def close(self, linger: float = 5.0) -> bool:
        """Stop listening; may be called twice. Clients notice missing heartbeats.

        :param linger: seconds to wait until clients have taken what was sent; the rest is dropped
        :returns: whether the system took everything that was sent
        """
        with self._lock:
            giop_server, self._giop_server = self._giop_server, None
        if giop_server is None:
            return True
        giop_server.stop()
        with self._lock:
            publisher, self._publisher = self._publisher, None
        return publisher is None or publisher.close(linger)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._giop_server is not None

    @property
    def port(self) -> int:
        """Port of calls; 0 while it is closed."""
        return self._giop_server.port if self._giop_server is not None else 0

    @property
    def _address(self) -> str:
        return f"{self.host_name if on_all_interfaces(self._host) else self._host}:{self.port}"

    def endpoints(self, local_host: str = "127.0.0.1") -> tuple[EndpointPair, ...]:
        """Endpoints that clients connect to for heartbeats and events (TG-08, TG-33).

        :param local_host: local address of the connection over which a client called
        """
        ports = self._event_ports
        if self._advertise:
            return tuple(_pair_of(one, ports) for one in self._advertise)
        if on_all_interfaces(self._host):
            return (_pair_of(local_host.removeprefix("::ffff:"), ports),)
        return (_pair_of(socket.gethostbyname(self._host), ports),)

    # --- with the lock held ----------------------------------------------------------------------------------

    def send(self, messages: list[Frames]) -> int:
        """Send events; returns the number of messages, 0 unless it runs."""
        publisher = self._publisher
        if publisher is None or not messages:
            return 0
        publisher.send_events(messages)
        self.sent += len(messages)
        self.heard += sum(publisher.is_heard(frames[0]) for frames in messages)
        return len(messages)

    def subscribers(self) -> dict[bytes, int]:
        """Topic -> number of connections that subscribed to it."""
        return {} if self._publisher is None else self._publisher.subscribers()

    def all_written(self) -> bool:
        """Whether no client holds events back now."""
        with self._lock:
            return self._publisher is None or self._publisher.all_written()

    # --- in the thread of the GIOP server --------------------------------------------------------------------

    def call(
        self, request: messages.GiopRequest, reader: CdrReader, client_host: str, local_host: str
    ) -> messages.Body:
        """Execute a call of a client; returns a function that encodes its result.

        :param client_host: address of the client
        :param local_host: local address of its connection
        :raises DevFailed: the device refuses the call
        :raises SystemException: there is no such object or operation
        """
        caller = Caller(client_host, self.endpoints(local_host))
        with self._lock:
            return self._servant.execute(request, reader, caller, time.monotonic())

    def has(self, key: bytes) -> bool:
        with self._lock:
            return self._servant.has(key)

    def tick(self) -> float | None:
        """Send heartbeats and events that are due; returns the seconds until the next deadline, None if there is
        none."""
        with self._lock:
            now = time.monotonic()
            for frames in self._supplier.due_heartbeats(now):
                if self._publisher is not None:
                    self._publisher.send_heartbeat(frames)
            self.send(self._supplier.due_events(now))
            deadline = self._supplier.next_deadline()
        return None if deadline is None else deadline - time.monotonic()


def _pair_of(host: str | EndpointPair, ports: tuple[int, int]) -> EndpointPair:
    return EndpointPair(*(f"tcp://{host}:{port}" for port in ports)) if isinstance(host, str) else host

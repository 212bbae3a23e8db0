"""The Malamute broker: one thread (:mod:`.loop`) owns the sockets and the session machine; engines run in others."""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import zmq

from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError, Unavailable
from mama_spark.contracts.zmq_connections import open_context
from mama_spark.malamute.protocol.extensions import Feature

from ....telemetry.exposition import CONTENT_TYPE, Metric, exposition, prometheus_client
from ..configuration import BrokerSettings, EngineChoice
from ..session.broker_events import BrokerEvent, encode
from ..session.settings import SessionSettings
from .engine_selector import EngineSelector
from .loop import BrokerLoop
from .metrics import as_json, clients_of, measure, streams_of
from .security import ZapHandler

if TYPE_CHECKING:
    from ....telemetry.metrics_server import MetricsServer

__all__ = ["Broker", "BrokerSettings", "EngineChoice"]

logger = logging.getLogger(__name__)

#: Of one stream whose engine has its own thread; each has an event descriptor, an open file.
_SOCKETS = 1
#: Most files of one open stream: those of a durable one that is in use.
_STREAM_FILES = 4
#: Reserved for clients and others.
_FILES = 2048
#: Seconds; the broker's thread answers once per round.
_INSPECTION_TIMEOUT = 10.0

#: Loops with an engine that does not end, kept alive: to terminate or collect their ZeroMQ context would block.
_UNTERMINATED: list[BrokerLoop] = []


class Broker:
    """A Malamute broker; as a context manager it starts and stops. ``encode`` makes the messages of its stream of
    events (:mod:`mama_spark.malamute.broker.session.broker_events`), in its thread."""

    def __init__(self, settings: BrokerSettings | None = None, encode: Callable[[BrokerEvent], bytes] = encode) -> None:
        self._encode = encode
        self.settings = settings or BrokerSettings()
        self.endpoints = self.settings.endpoints
        self.error: BaseException | None = None
        self._selector = EngineSelector(self.settings.engines)
        self._thread: threading.Thread | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._control: zmq.Socket[bytes] | None = None
        self._zap_handler: ZapHandler | None = None
        self._loop: BrokerLoop | None = None
        self._http: MetricsServer | None = None
        self._control_lock = threading.Lock()  # ZeroMQ sockets are not thread-safe

    @property
    def endpoint(self) -> str:
        """The first endpoint for clients."""
        return self.endpoints[0]

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
        if not self.keeps_events:
            machine = replace(machine, features=machine.features & ~Feature.DISCOVERY)
        self._context = open_context()
        self._context.set(zmq.MAX_SOCKETS, machine.streams * _SOCKETS + 16)
        self._control = self._context.socket(zmq.PAIR)
        control = f"inproc://mama-broker-{id(self):x}"
        self._control.bind(control)
        self._loop = BrokerLoop(
            replace(self.settings, machine=machine), self._context, control, self._selector, self._encode
        )
        try:
            self._zap_handler = ZapHandler(self._context, self.settings.security)
            self.endpoints = self._loop.bind(self._zap_handler)
            if self.settings.metrics is not None:
                prometheus_client()
                self._http = self._serve_pages(self.settings.metrics)
        except (zmq.ZMQError, MamaError) as e:
            self._loop.close()
            self._end()
            if isinstance(e, MamaError):
                raise
            raise Unavailable(f"cannot serve at {', '.join(self.settings.endpoints)}: {e}") from e
        self._thread = threading.Thread(target=self._run, name="mama-broker", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Stop reading from clients, wait until engines have finished and queued frames are sent, and end. Idempotent.

        :raises BackgroundTaskFailed: the broker's thread had failed
        """
        if self._thread is None or self._context is None or self._control is None:
            return
        if self._http is not None:
            self._http.close()
            self._http = None
        with self._control_lock, suppress(zmq.Again):
            self._control.send(b"stop", zmq.NOBLOCK)
        self._thread.join(timeout)
        self._thread = None
        self._end()
        if self.error is not None:
            raise BackgroundTaskFailed(f"the broker ended with {self.error!r}") from self.error

    def _end(self) -> None:
        assert self._context is not None
        assert self._control is not None
        if self._zap_handler is not None:
            self._zap_handler.stop()
        self._control.close(0)
        if self._loop is not None and self._loop.engines.has_running_engines():
            _UNTERMINATED.append(self._loop)
        else:
            self._context.term()
            if self._loop is not None and (dropped := self._loop.dropped()):
                logger.warning(dropped)

    def clients(self) -> list[bytes]:
        """Addresses of connected clients that have one, sorted."""
        return sorted(self._loop.machine.clients.by_address.copy()) if self._loop else []

    def streams(self) -> list[bytes]:
        """Names of all streams, sorted, including streams without clients."""
        return sorted(self._loop.engines.streams.copy()) if self._loop else []

    def counters(self) -> dict[str, int]:
        return asdict(self._loop.machine.clients.counters) if self._loop else {}

    def metrics(self) -> list[Metric]:
        """A consistent snapshot of counters and gauges.

        :raises BackgroundTaskFailed: the broker does not run
        """
        found: list[Metric] = self._inspect(measure)
        return found

    def client_list(self) -> list[dict[str, Any]]:
        """One dictionary per client (:func:`.metrics.clients_of`); errors as :meth:`metrics`."""
        found: list[dict[str, Any]] = self._inspect(lambda loop: clients_of(loop, time.monotonic()))
        return found

    def stream_list(self) -> list[dict[str, Any]]:
        """One dictionary per stream (:func:`.metrics.streams_of`); errors as :meth:`metrics`."""
        found: list[dict[str, Any]] = self._inspect(streams_of)
        return found

    @property
    def metrics_url(self) -> str | None:
        return None if self._http is None else self._http.url

    def _inspect(self, inspect: Callable[[BrokerLoop], Any]) -> Any:
        """Run ``inspect`` in the thread of the loop."""
        loop, thread, control = self._loop, self._thread, self._control
        if loop is None or thread is None or control is None or not thread.is_alive():
            raise BackgroundTaskFailed("the broker does not run")
        result: SimpleQueue[Any] = SimpleQueue()
        with self._control_lock, suppress(zmq.ZMQError):
            loop.inspections.append((inspect, result))
            control.send(b"inspect", zmq.NOBLOCK)
        try:
            return result.get(timeout=_INSPECTION_TIMEOUT)
        except Empty:
            raise BackgroundTaskFailed("the broker does not answer") from None

    def _serve_pages(self, address: str) -> MetricsServer:
        from ....telemetry.metrics_server import MetricsServer  # http.server takes a tenth of the start

        return MetricsServer(address, self._pages())

    def _pages(self) -> dict[str, tuple[str, Callable[[], str]]]:
        return {
            "/metrics": (CONTENT_TYPE, lambda: exposition(self.metrics())),
            "/clients": ("application/json", lambda: as_json(self.client_list())),
            "/streams": ("application/json", lambda: as_json(self.stream_list())),
        }

    @property
    def keeps_events(self) -> bool:
        """Whether the broker's own stream is stored, which source discovery needs."""
        name = self.settings.machine.events
        return bool(name) and self._selector.stores(name)

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except Exception as e:  # raised by stop
            self.error = e
            logger.error("the broker ended: %s", e, exc_info=e)
        finally:
            self._loop.close()


def _within_limits(settings: SessionSettings) -> SessionSettings:
    """Reduce the limit of streams to the system's limit of open files, after raising its soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = settings.streams * _STREAM_FILES + _FILES
    if soft != resource.RLIM_INFINITY and soft < want:
        soft = want if hard == resource.RLIM_INFINITY else min(want, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= want:
        return settings
    streams = max(1, (soft - _FILES) // _STREAM_FILES)
    logger.warning("%d open files allow %d streams, not %d; see ulimit -n", soft, streams, settings.streams)
    return replace(settings, streams=streams)

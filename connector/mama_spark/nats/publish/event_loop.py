"""A thread with an event loop, or the loop of a caller, whose client publishes there.

If the loop ends, calls that wait for it raise :class:`~mama_spark.contracts.errors.BackgroundTaskFailed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from mama_spark.contracts.connection_pool import require_file_descriptors
from mama_spark.contracts.errors import BackgroundTaskFailed, Unavailable

T = TypeVar("T")
#: File descriptors: the loop takes 3, a connection one; name lookups and certificates take some for a moment.
_FILE_DESCRIPTORS = 8


class EventLoopThread:
    """Runs an event loop in a thread, or wraps a loop that the caller runs."""

    def __init__(self, running: asyncio.AbstractEventLoop | None = None) -> None:
        self.pid = os.getpid()
        self.died: BaseException | None = None
        self._waiting: set[Future[Any]] = set()
        self._on_death: list[Callable[[BaseException], None]] = []
        self._lock = threading.Lock()
        if running is not None:
            self.loop = running
            return
        require_file_descriptors(_FILE_DESCRIPTORS, "the event loop of NATS connections")
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mama-nats", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            error: BaseException = RuntimeError("the event loop was stopped")
        except BaseException as e:  # noqa: BLE001 - raised again to the waiting threads
            error = e
        with self._lock:
            self.died = error
            waiting, self._waiting = self._waiting, set()
            callbacks = list(self._on_death)
        for future in waiting:
            if not future.done():
                future.set_exception(self._death_error())
        for call in callbacks:
            call(error)
        with contextlib.suppress(Exception):
            self._shutdown()

    def _shutdown(self) -> None:
        """Cancel running tasks, so that asyncio does not warn when they are garbage-collected."""
        self.loop.run_until_complete(asyncio.sleep(0))  # the calls submitted last start, and can be cancelled
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def stop(self) -> None:
        """End the thread; for loops that are not shared."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)

    def _death_error(self) -> BackgroundTaskFailed:
        died = BackgroundTaskFailed(f"the event loop of the NATS connections ended: {self.died!r}")
        died.__cause__ = self.died
        return died

    @property
    def alive(self) -> bool:
        return self.died is None and self.pid == os.getpid() and not self.loop.is_closed()

    def here(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def on_death(self, call: Callable[[BaseException], None]) -> None:
        with self._lock:
            self._on_death.append(call)

    def forget(self, call: Callable[[BaseException], None]) -> None:
        with self._lock:
            if call in self._on_death:
                self._on_death.remove(call)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Run ``call`` on the loop.

        :raises BackgroundTaskFailed: the loop has ended
        """
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError as e:
            self.died = self.died or e
            raise self._death_error() from e

    def run(self, work: Coroutine[Any, Any, T], timeout: float, what: str) -> T:
        """Run a coroutine on the loop and wait for it.

        :raises BackgroundTaskFailed: the loop ended meanwhile
        :raises Unavailable: it took longer than ``timeout``
        """
        with self._lock:
            if self.died is not None:
                work.close()
                raise self._death_error()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._waiting.add(future)
        try:
            return future.result(timeout)
        except FutureTimeout:
            if future.done():
                raise
            future.cancel()
            raise Unavailable(f"{what} took longer than {timeout:g} s") from None
        finally:
            with self._lock:
                self._waiting.discard(future)

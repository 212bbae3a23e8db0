"""A thread with an event loop, for the clients of tests."""

from __future__ import annotations

import asyncio
import threading

from mama_spark.nats.publish.client_connection import CallersLoop


class EventLoopThread(CallersLoop):
    """Runs until :meth:`stop`."""

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name="test-event-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(asyncio.sleep(0))  # the calls submitted last start, and can be cancelled
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def stop(self) -> None:
        self.soon(self.loop.stop)
        self._thread.join(5)

"""Thread that checks the subscriptions of a recorder for losses which no later event shows."""

from __future__ import annotations

import logging
import threading

from mama_spark.contracts.errors import BackgroundTaskFailed, ClientClosed, MamaError
from mama_spark.tango.client.subscriber import TangoSubscriber

logger = logging.getLogger("mama_spark")

_STOP_TIMEOUT = 10.0


class LossCheckThread:
    """Calls :meth:`TangoSubscriber.check_losses` twice within each period, since two calls make a check.

    :param period: seconds; 0: never
    :ivar failure: error that ended the thread; None: there is none
    """

    def __init__(self, subscriber: TangoSubscriber, period: float) -> None:
        self._subscriber, self._between = subscriber, period / 2
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tango-recorder-losses", daemon=True)
        self.failure: MamaError | None = None

    def start(self) -> None:
        """Start the thread, if there is a period."""
        if self._between:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits for a call in progress, some seconds at most."""
        self._stopped.set()
        if self._between:
            self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._between):
                self._subscriber.check_losses()
        except ClientClosed:
            return
        except Exception as error:
            logger.exception("the thread that checks for losses failed")
            self.failure = BackgroundTaskFailed(f"the thread that checks for losses failed: {error}")

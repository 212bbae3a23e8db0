"""A thread whose failure ends what relies on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..contracts.errors import BackgroundTaskFailed, MamaError

logger = logging.getLogger("mama_spark")


class BackgroundTask:
    """Calls ``work`` once, in a thread; it ends soon after ``stopping`` is set, and :meth:`stop` waits ``patience``
    seconds for that. ``doing``: the task, for log messages: ``subscribes to devices``."""

    def __init__(self, name: str, doing: str, work: Callable[[], None], patience: float = 0.0) -> None:
        self._doing, self._work, self._patience = doing, work, patience
        self.stopping = threading.Event()
        self._failure: MamaError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; may be repeated, also where it was not started."""
        self.stopping.set()
        patience, self._patience = self._patience, 0.0  # who stops it again has waited
        if self.running:
            self._thread.join(patience)

    def check(self) -> None:
        """Raise the error with which the thread ended, if there is one.

        :raises MamaError: that error
        """
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work()
        except MamaError as error:
            self._failure = error
        except BaseException as error:
            logger.exception("the thread that %s failed", self._doing)
            self._failure = BackgroundTaskFailed(f"the thread that {self._doing} failed: {error}")

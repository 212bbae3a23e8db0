"""State of a streaming query in its process on the driver: the plan of its next micro-batch, and found records."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, Generic, TypeVar

from mama_spark.contracts.errors import Unavailable

K = TypeVar("K")
T = TypeVar("T")


class OfThisProcess(dict[K, T]):
    """A dictionary whose copy in another process is empty."""

    def __reduce__(self) -> tuple[type[OfThisProcess[K, T]], tuple[()]]:
        return OfThisProcess, ()


class PlanAhead(Generic[T]):
    """Plans one micro-batch, on its own thread, while Spark writes its offsets. A copy in another process has none.

    Between the newest offset of a micro-batch and its tasks, Spark writes a file and plans the query. A plan asks the
    broker several questions, whose answers are there when Spark wants the tasks.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._plan: Future[T] | None = None

    def __reduce__(self) -> tuple[type[PlanAhead[T]], tuple[()]]:
        return PlanAhead, ()

    def begin(self, key: Any, make: Callable[[], T]) -> None:
        """Begin the plan of ``key`` by a call of ``make`` in another thread; forget one that was not taken."""
        plan: Future[T] = Future()
        self._key, self._plan = key, plan

        def run() -> None:
            try:
                plan.set_result(make())
            except BaseException as e:  # noqa: BLE001  for who takes the plan
                plan.set_exception(e)

        Thread(target=run, name="mamasub-plan", daemon=True).start()

    def take(self, key: Any) -> T | None:
        """Wait for the plan of ``key``. None if it was not begun, was taken, or failed: a new plan tells why, without
        changes in the middle of it.

        :raises Unavailable: the broker did not answer in time; a new plan would wait as long again
        """
        plan, self._plan = self._plan, None
        if plan is None or self._key != key:
            return None
        error = plan.exception()
        if isinstance(error, Unavailable):
            raise error
        return plan.result() if error is None else None

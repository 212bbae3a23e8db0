"""What a streaming query keeps in its process on the driver: the plan of its next micro-batch, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, Generic, TypeVar

from mama_spark.contracts.errors import Unavailable

K = TypeVar("K")
T = TypeVar("T")


class OfThisProcess(dict[K, T]):
    """A copy in another process is empty."""

    def __reduce__(self) -> tuple[type[OfThisProcess[K, T]], tuple[()]]:
        return OfThisProcess, ()


class PlanAhead(Generic[T]):
    """Plans a micro-batch while Spark writes its offsets down: at most one plan, made by a thread of its own. A copy in
    another process has none.

    Between the newest offset of a micro-batch and its tasks, Spark writes a file and plans the query. A plan asks the
    broker several questions; the answers are there when Spark wants the tasks.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._plan: Future[T] | None = None

    def __reduce__(self) -> tuple[type[PlanAhead[T]], tuple[()]]:
        return PlanAhead, ()

    def begin(self, key: Any, make: Callable[[], T]) -> None:
        """Begin the plan of ``key``, calling ``make`` in another thread; one that was not taken is forgotten."""
        plan: Future[T] = Future()
        self._key, self._plan = key, plan

        def run() -> None:
            try:
                plan.set_result(make())
            except BaseException as e:  # noqa: BLE001  for who takes the plan
                plan.set_exception(e)

        Thread(target=run, name="mamasub-plan", daemon=True).start()

    def take(self, key: Any) -> T | None:
        """The plan of ``key``, which is waited for. None if it was not begun, was taken, or failed: a plan that begins
        now says why, without what changed in the middle of this one.

        :raises Unavailable: the broker did not answer in time; to ask again would wait as long once more
        """
        plan, self._plan = self._plan, None
        if plan is None or self._key != key:
            return None
        error = plan.exception()
        if isinstance(error, Unavailable):
            raise error
        return plan.result() if error is None else None

"""Errors of this package as a person sees them: one line that says what happened, without the trace of a worker.

Spark runs planning, tasks and commits in Python processes of its own, and an exception there reaches the user as text
inside another exception. A :class:`~mama_spark.contracts.errors.MamaError` says itself what happened and what to do;
the trace around it, of hundreds of lines, only hides it, and Spark would end the text with a line ``SQLSTATE: 38000``.
Unexpected exceptions keep their trace.

``MAMA_TRACEBACK=1`` in the environment of these processes brings the trace back.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.errors import PySparkException

from ..contracts.errors import BackgroundTaskFailed, MamaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACEBACK = "MAMA_TRACEBACK"
#: Spark's workers then send no trace of the error that ends them.
_HIDE = "SPARK_HIDE_TRACEBACK"

#: The line of an error within Spark's text; Spark's own codes follow it.
_QUOTED = re.compile(r"mama_spark\.[\w.]+: .*?(?=\s*SQLSTATE: |\n|\Z)")

P = ParamSpec("P")
R = TypeVar("R")


def plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates what Spark calls in its Python processes; also generators."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from method(*args, **kwargs)
            except MamaError as e:
                _hide_trace(e)
                raise

        return iterate  # type: ignore[return-value]

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except MamaError as e:
            _hide_trace(e)
            raise

    return call


def _hide_trace(error: MamaError) -> None:
    """Let the worker send only the line of ``error``. :data:`TRACEBACK` turns it off.

    It changes the whole process, and is on, because this error ends the process: no other code runs in it any more,
    and Spark asks its variable when it writes the error. Spark's own setting,
    ``spark.sql.execution.pyspark.udf.hideTraceback.enabled``, belongs to the user's session and hides all traces.
    """
    if not in_worker() or _is_unexpected(error) or os.environ.get(TRACEBACK, "0") not in ("", "0"):
        return
    os.environ[_HIDE] = "1"
    lines = traceback.format_exception_only

    def one_text(*args: Any, **kwargs: Any) -> list[str]:  # Spark appends to it; a line's end would part the two
        return ["".join(lines(*args, **kwargs)).rstrip("\n")]

    traceback.format_exception_only = one_text


@contextmanager
def last_line() -> Iterator[None]:
    """Let an error of a streaming query end with the line that says what happened::

        with mama_spark.last_line():
            query.awaitTermination()

    Spark puts the plan of the query below that line. :func:`mama_spark.announced` does the same.
    """
    try:
        yield
    except PySparkException as e:
        add_last_line(e)
        raise


@contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop ``spark`` at the end of a program, and let an error be the last that stands on its terminal::

        with mama_spark.stopping(spark):
            ...

    Behind the error, Spark would log how it ends. Its own log is off from the error on, in this driver.
    """
    try:
        with last_line():
            yield
    except BaseException:
        with suppress(Exception):  # Spark Connect has no log here, and a session that is lost none any more
            spark.sparkContext.setLogLevel("OFF")
        raise
    finally:
        spark.stop()


def add_last_line(error: BaseException) -> None:
    found = _QUOTED.search(str(error)) if isinstance(error, PySparkException) else None
    if found is not None and not str(error).rstrip().endswith(found[0].strip()):
        error.add_note(found[0].strip())


def in_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")


def _is_unexpected(error: MamaError) -> bool:
    """Whether a thread ended by what nobody has foreseen: only the trace tells where."""
    return isinstance(error, BackgroundTaskFailed) and not isinstance(error.__cause__, MamaError | OSError)

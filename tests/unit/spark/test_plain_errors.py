"""Errors of this package, as the workers of Spark send them and as its users see them."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Iterator

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed, MamaError, OptionError
from mama_spark.spark import plain_errors
from pyspark.errors import PySparkException
from pyspark.util import handle_worker_exception

from tests.support.tables import each

QUERY = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown from \
the Python worker: mama_spark.contracts.errors.Unavailable: none answers at x: start it SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
+- StreamingDataSourceV2ScanRelation"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for a worker of Spark, and is one no more afterwards."""
    monkeypatch.setattr(plain_errors, "in_worker", lambda: True)
    monkeypatch.setattr(traceback, "format_exception_only", traceback.format_exception_only)
    monkeypatch.delenv(plain_errors.TRACEBACK, raising=False)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def sent(error: Exception) -> str:
    """What Spark gets of a method that raises ``error``."""

    @plain_errors.plain_errors
    def method() -> None:
        raise error

    out = io.BytesIO()
    try:
        method()
    except Exception as e:  # noqa: BLE001
        handle_worker_exception(e, out)
    return out.getvalue()[8:].decode()


@pytest.mark.usefixtures("worker")
def test_a_worker_sends_the_line_of_an_error_alone_without_an_end_and_the_trace_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(plain_errors.TRACEBACK, "1")
    assert sent(OptionError("option url is wrong")).startswith("Traceback (most recent call last):")
    monkeypatch.delenv(plain_errors.TRACEBACK)
    assert sent(OptionError("option url is wrong")) == "mama_spark.contracts.errors.OptionError: option url is wrong"


def died_of(cause: Exception) -> MamaError:
    error = BackgroundTaskFailed("a thread ended")
    error.__cause__ = cause
    return error


@pytest.mark.usefixtures("worker")
@each(
    ("error", "traced"),
    [(KeyError("x"), True), (died_of(KeyError("x")), True), (died_of(OSError("disk full")), False)],
)
def test_what_nobody_foresaw_keeps_its_trace(error: Exception, traced: bool) -> None:
    assert ("Traceback (most recent call last):" in sent(error)) is traced


def test_a_process_that_spark_has_not_started_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    before = traceback.format_exception_only
    assert sent(OptionError("option url is wrong")).startswith("Traceback")
    assert (traceback.format_exception_only, "SPARK_HIDE_TRACEBACK" in os.environ) == (before, False)


@pytest.mark.usefixtures("worker")
def test_an_error_while_rows_are_made_is_plain_too() -> None:
    @plain_errors.plain_errors
    def rows() -> Iterator[int]:
        yield 1
        raise OptionError("no more")

    made = rows()
    assert next(made) == 1
    with pytest.raises(OptionError):
        next(made)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


def test_the_error_of_a_query_ends_with_what_happened_unless_it_is_not_ours() -> None:
    with pytest.raises(PySparkException) as caught, plain_errors.last_line():
        raise PySparkException(QUERY)
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    assert shown[-1] == "mama_spark.contracts.errors.Unavailable: none answers at x: start it"
    with pytest.raises(PySparkException) as caught, plain_errors.last_line():
        raise PySparkException("[TABLE_OR_VIEW_NOT_FOUND] no table")
    assert not hasattr(caught.value, "__notes__")


class SessionDouble:
    """What :func:`stopping` uses of a session."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.calls: list[str] = []

    def setLogLevel(self, level: str) -> None:
        self.calls.append(level)

    def stop(self) -> None:
        self.calls.append("stop")


def test_a_program_that_fails_ends_the_log_of_spark_before_its_session() -> None:
    fine, failing = SessionDouble(), SessionDouble()
    with plain_errors.stopping(fine):  # type: ignore[arg-type]
        pass
    with pytest.raises(KeyboardInterrupt), plain_errors.stopping(failing):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert (fine.calls, failing.calls) == (["stop"], ["OFF", "stop"])

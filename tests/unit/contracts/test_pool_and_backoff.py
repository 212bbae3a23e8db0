"""Which idle connections are given out again, how long one waits for another one, and too few descriptors."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts import connection_pool
from mama_spark.contracts.backoff import RECONNECT, Backoff
from mama_spark.contracts.connection_pool import IDLE, ConnectionPool

from tests.support.tables import each


class PoolRecorder:
    """Connections are texts; ``broken`` ones cannot be used any more."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.closed: list[str] = []
        self.now = 0.0
        self.pool: ConnectionPool[str] = ConnectionPool(
            lambda c: c not in self.broken, self.closed.extend, lambda: self.now
        )


@pytest.fixture(autouse=True)
def due(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Callable[[], None]]]:
    """Delays and functions of the timers that were started."""
    found: list[tuple[float, Callable[[], None]]] = []

    class Timer:
        def __init__(self, delay: float, call: Callable[[], None]) -> None:
            self.start = lambda: found.append((delay, call))

        def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(connection_pool, "threading", SimpleNamespace(Timer=Timer, Lock=threading.Lock))
    return found


def test_the_latest_usable_connection_of_a_key_is_given_out() -> None:
    p = PoolRecorder()
    for name in ("one", "two", "three"):
        p.pool.put("key", name)
    p.pool.put("other", "foreign")
    p.broken = {"three"}
    assert p.pool.take("key") == "two"
    assert p.closed == ["three"]
    assert p.pool.take("key") == "one"
    assert p.pool.take("key") is None


def test_a_broken_connection_is_closed_and_not_kept(due: list[object]) -> None:
    p = PoolRecorder()
    p.broken = {"one"}
    p.pool.put("key", "one")
    assert p.closed == ["one"]
    assert p.pool.take("key") is None
    assert due == []


def test_a_connection_that_is_idle_for_too_long_is_closed(due: list[tuple[float, Callable[[], None]]]) -> None:
    p = PoolRecorder()
    p.pool.put("key", "one")
    p.now = 10.0
    p.pool.put("key", "two")
    ((delay, sweep),) = due
    assert delay > IDLE
    p.now = delay
    sweep()
    assert p.closed == ["one"]
    p.now += due[1][0]
    due[1][1]()
    assert p.closed == ["one", "two"]
    assert p.pool.take("key") is None
    assert len(due) == 2, "nothing is idle any more"


# --- The delays of retries: rise by a factor, stay below a limit, and begin anew after a success ----------------------

_SECONDS = st.floats(0, 1e6, allow_nan=False)
_BACKOFFS = st.builds(
    lambda first, more, factor, jitter: Backoff(first, first + more, factor, jitter),
    _SECONDS,
    _SECONDS,
    st.floats(1, 1e3),
    st.floats(0, 1),
)
_UNIFORM = st.floats(0, 1)


@given(_BACKOFFS, st.integers(0, 10**6), _UNIFORM)
def test_a_delay_is_within_its_bounds(backoff: Backoff, attempt: int, drawn: float) -> None:
    whole = backoff.delay(attempt, lambda: 0.0)
    assert backoff.first <= whole <= backoff.most
    assert whole * (1 - backoff.jitter) * (1 - 1e-9) <= backoff.delay(attempt, lambda: drawn) <= whole


@given(_BACKOFFS, st.integers(0, 2000))
def test_delays_rise_by_the_factor_up_to_the_limit(backoff: Backoff, attempt: int) -> None:
    one, following = (backoff.delay(n, lambda: 0.0) for n in (attempt, attempt + 1))
    assert following == pytest.approx(min(one * backoff.factor, backoff.most))


@given(_BACKOFFS, st.lists(st.booleans(), max_size=50))
def test_a_run_counts_failures_since_the_last_success(backoff: Backoff, succeeded: list[bool]) -> None:
    backoff = Backoff(backoff.first, backoff.most, backoff.factor)  # without jitter
    delays, failed = backoff.delays(), 0
    for success in succeeded:
        if success:
            delays.reset()
            failed = 0
        assert delays.next() == backoff.delay(failed)
        failed += 1


def test_one_factor_means_one_delay() -> None:
    assert [Backoff(0.25, 0.25, 1.0).delay(n) for n in (0, 1, 10**9)] == [0.25] * 3


def test_an_attempt_number_may_be_any_integer() -> None:
    assert RECONNECT.delay(-1) == RECONNECT.first
    assert RECONNECT.delay(10**9) == RECONNECT.most
    assert Backoff(0.0, 0.0).delay(10**9) == 0.0


def test_jitter_draws_from_the_random_numbers_of_python_unless_told() -> None:
    drawn = {Backoff(1.0, 1.0, jitter=1.0).delay(0) for _ in range(20)}
    assert len(drawn) > 1
    assert all(0 <= one <= 1 for one in drawn)


@each("wrong", [(-1, 1, 2, 0), (2, 1, 2, 0), (1, 2, 0.5, 0), (1, 2, 2, 1.5), (1, 2, 2, -0.1), (float("nan"), 2, 2, 0)])
def test_what_is_no_schedule_is_refused(wrong: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="no schedule of delays"):
        Backoff(*wrong)


def test_the_delays_before_a_reconnect() -> None:
    delays = RECONNECT.delays()
    assert [delays.next() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


# --- A process that has no file descriptor left gets one clear error: libzmq would end it without one -----------------

CONNECTOR = Path(__file__).resolve().parents[3] / "connector" / "mama_spark"

#: Tries with 0 to 20 descriptors more than are open; prints the outcomes.
SCRIPT = """
import os, resource
import nats.aio.client, zmq, mama_spark.nats.publish.bridge  # files that imports open are not the point
from mama_spark.nats import publisher_bridge
from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.options import SinkOptions
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.contracts.zmq_connections import open_context

def context():
    made = open_context()
    sockets = [made.socket(zmq.SUB) for _ in range(4)]
    for socket in sockets:
        socket.close()
    made.term()

def subscriber():
    with TangoSubscriber():
        pass

def source():
    with TangoEventSource():
        pass

def client():
    with MalamuteClient("mlp://127.0.0.1:1", timeout=0.01):
        pass

def nats_bridge():
    publisher_bridge(SinkOptions.parse({"url": "nats://127.0.0.1:1"})).open()

limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for attempt in (nats_bridge, context, subscriber, source, client):
    texts = set()
    for left in range(0, 7 if attempt is nats_bridge else 21, 2):  # it waits for seconds where it may try
        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
        try:
            attempt()
        except Unavailable as e:
            texts.add("Too many open files" if "Too many open files" in str(e) else "unavailable")
        else:
            texts.add("opened")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    print(attempt.__name__, *sorted(texts), sep=", ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files in /proc")
def test_too_few_descriptors_are_an_error_and_not_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "nats_bridge, Too many open files",
        "context, Too many open files, opened",
        "subscriber, Too many open files, opened",
        "source, Too many open files, opened",
        "client, Too many open files, unavailable",
    ]


def test_contexts_are_opened_in_one_place() -> None:
    opening = [path.name for path in CONNECTOR.rglob("*.py") if "zmq.Context()" in path.read_text(encoding="utf-8")]
    assert sorted(opening) == ["driven_stream.py", "zmq_connections.py"]  # the former is of the test kit

"""Which idle connections are given out again, and which are closed."""

from __future__ import annotations

from collections.abc import Callable

from mama_spark.contracts.connection_pool import IDLE, ConnectionPool


class PoolRecorder:
    """Connections are texts; ``broken`` ones cannot be used any more."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.closed: list[str] = []
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.pool: ConnectionPool[str] = ConnectionPool(
            lambda c: c not in self.broken,
            self.closed.extend,
            lambda delay, call, _: self.due.append((delay, call)),
            lambda: self.now,
        )


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


def test_a_broken_connection_is_closed_and_not_kept() -> None:
    p = PoolRecorder()
    p.broken = {"one"}
    p.pool.put("key", "one")
    assert p.closed == ["one"]
    assert p.pool.take("key") is None
    assert p.due == []


def test_a_connection_that_is_idle_for_too_long_is_closed() -> None:
    p = PoolRecorder()
    p.pool.put("key", "one")
    ((delay, sweep),) = p.due
    p.now = delay
    assert delay > IDLE
    sweep()
    assert p.closed == ["one"]
    assert p.pool.take("key") is None

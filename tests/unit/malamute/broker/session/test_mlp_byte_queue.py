"""Queues limited in bytes (the reference's tests of its bounded mailbox, B1-B5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.session.queues import ByteQueue, MailboxMessage, MailboxStore
from mama_spark.malamute.broker.session.settings import Limits, Overflow


def drained(queue: ByteQueue[int]) -> list[int]:
    return [queue.get() for _ in range(len(queue))]


@pytest.mark.spec("B1", "B2", "B3", "B4")
def test_what_fits_comes_out_in_order_and_what_does_not_fit_is_dropped() -> None:
    """10 of 10 bytes fit in 100, the 11th is dropped; a raised limit counts for what comes then"""
    unlimited: ByteQueue[int] = ByteQueue()
    queue: ByteQueue[int] = ByteQueue(100)
    for n in range(10):
        assert unlimited.put(n, 10) == queue.put(n, 10) == []
    assert unlimited.put(10, 10) == []
    assert queue.put(10, 10) == [10]
    assert drained(unlimited) == list(range(11))
    queue.limit = 120
    assert [queue.put(n, 10) for n in (11, 12, 13)] == [[], [], [13]]
    assert drained(queue) == [*range(10), 11, 12]
    assert (len(queue), queue.size, unlimited.size) == (0, 0, 0)


@pytest.mark.spec("B5")
def test_the_warning_comes_once_beyond_its_mark_and_again_after_half_was_drained() -> None:
    queue: ByteQueue[int] = ByteQueue(None, 100)

    def warned(count: int) -> list[int]:
        """Which of so many more are warned of."""
        return [n for n in range(count) if queue.put(n, 10) == [] and queue.should_warn()]

    assert warned(12) == [10]
    for _ in range(7):
        queue.get()
    assert queue.size == 50
    assert warned(6) == [], "half of it is not below half"
    for _ in range(7):
        queue.get()
    assert warned(8) == [6]


def test_the_oldest_may_be_dropped_instead() -> None:
    queue: ByteQueue[str] = ByteQueue(30, None, Overflow.DROP_OLDEST)
    for name in "abc":
        queue.put(name, 10)
    assert queue.put("d", 15) == ["a", "b"]
    assert list(queue) == ["c", "d"]
    assert queue.put("e", 31) == ["e"], "what can never fit drops nothing else"
    assert list(queue) == ["c", "d"]


@given(st.sampled_from(Overflow), st.lists(st.one_of(st.integers(0, 40), st.none())))
def test_the_limit_holds_and_nothing_is_lost_untold(overflow: Overflow, steps: list[int | None]) -> None:
    queue: ByteQueue[tuple[int, int]] = ByteQueue(100, None, overflow)
    seen: list[tuple[int, int]] = []
    for n, step in enumerate(steps):
        if step is None:
            seen += [queue.get()] if len(queue) else []
        else:
            seen += queue.put((n, step), step)
        assert queue.size <= 100
        assert queue.size == sum(size for _, size in queue)
    assert sorted([*seen, *queue]) == [(n, s) for n, s in enumerate(steps) if s is not None]


def test_a_store_warns_once_by_address(caplog: pytest.LogCaptureFixture) -> None:
    store = MailboxStore(Limits(warn=10))
    for address, size in ((b"a", 11), (b"b", 10), (b"a", 1)):
        store.put(MailboxMessage(False, None, b"", address, b"s", content=[b"x" * size]))
    assert [record.getMessage() for record in caplog.records] == ["the mailbox b'a' holds 11 bytes that nobody takes"]
    assert len(store) == 3

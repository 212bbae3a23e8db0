"""Queues limited in bytes (the reference's tests of its bounded mailbox, B1-B5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.session.queues import ByteQueue, MailboxMessage, MailboxStore
from mama_spark.malamute.broker.session.settings import Limits, Overflow


def drained(queue: ByteQueue[str]) -> list[str]:
    return [queue.get() for _ in range(len(queue))]


@pytest.mark.spec("B1")
def test_without_a_limit_everything_comes_out_in_order() -> None:
    queue: ByteQueue[str] = ByteQueue()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        assert queue.put(letter, 1) == []
    assert "".join(drained(queue)) == "abcdefghijklmnopqrstuvwxyz"
    assert queue.size == 0


@pytest.mark.spec("B2", "B3")
def test_what_does_not_fit_is_dropped_and_what_fitted_is_kept() -> None:
    """10 of 10 bytes fit in 100, the 11th is dropped"""
    queue: ByteQueue[str] = ByteQueue(100)
    for n in range(10):
        assert queue.put(str(n), 10) == []
    assert queue.put("10", 10) == ["10"]
    assert drained(queue) == [str(n) for n in range(10)]
    assert (len(queue), queue.size) == (0, 0)


@pytest.mark.spec("B4")
def test_a_raised_limit_counts_for_what_comes_then() -> None:
    queue: ByteQueue[int] = ByteQueue(100)
    for n in range(11):
        queue.put(n, 10)
    queue.limit = 120
    assert [queue.put(n, 10) for n in (11, 12, 13)] == [[], [], [13]]
    assert list(queue) == [*range(10), 11, 12]


@pytest.mark.spec("B5")
def test_the_warning_comes_once_beyond_its_mark_and_again_after_half_was_drained() -> None:
    queue: ByteQueue[int] = ByteQueue(None, 100)
    warned = []
    for n in range(12):
        queue.put(n, 10)
        warned.append(queue.should_warn())
    assert warned == [False] * 10 + [True, False]
    for _ in range(7):
        queue.get()
    assert queue.size == 50
    for n in range(6):
        queue.put(n, 10)
    assert not queue.should_warn(), "half of it is not below half"
    for _ in range(7):
        queue.get()
    for n in range(8):
        queue.put(n, 10)
    assert queue.should_warn()
    assert not queue.should_warn()


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

"""Queues of callbacks: bounds, dispatching, and the statuses of OpenMAMA."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mama_spark.mama import Queue, Status, StatusError
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import dispatch, fails


def test_calls_are_made_in_order_by_the_thread_that_dispatches() -> None:
    queue, made = Queue("q"), list[tuple[int, int]]()
    for i in range(5):
        queue.enqueue(lambda i=i: made.append((i, threading.get_ident())))  # type: ignore[misc]
    assert queue.get_event_count() == 5
    assert made == []
    assert queue.dispatch_event()
    assert made == [(0, threading.get_ident())], "one at a time"
    while queue.get_event_count():
        queue.dispatch(0.05)
    assert made == [(i, threading.get_ident()) for i in range(5)]
    assert not queue.dispatch_event(), "and none is no wait"


def test_dispatch_ends_when_it_is_stopped_from_a_call_or_another_thread() -> None:
    queue = Queue()
    queue.enqueue(queue.stop_dispatch)
    queue.enqueue(lambda: None)
    queue.dispatch()
    assert queue.get_event_count() == 1, "what follows waits for the next dispatch"
    thread = threading.Thread(target=queue.dispatch)
    thread.start()
    until(lambda: queue.get_event_count() == 0)
    queue.stop_dispatch()
    thread.join(60)
    assert not thread.is_alive()


def test_dispatch_ends_in_time_although_calls_keep_coming() -> None:
    queue, made = Queue(), list[int]()

    def again() -> None:
        made.append(1)
        queue.enqueue(again)

    again()
    while len(made) == 1:  # where this thread stands still for so long, nothing is called
        begin = time.monotonic()
        queue.dispatch(0.1)
        assert time.monotonic() - begin >= 0.1


def test_a_full_queue_refuses_what_begins_and_keeps_the_places_that_were_promised() -> None:
    queue, made = Queue(max_events=3), list[str]()
    queue.reserve()
    queue.enqueue(lambda: made.append("a"))
    queue.enqueue(lambda: made.append("b"))
    fails(Status.QUEUE_FULL, queue.enqueue, lambda: None)
    assert queue.put(lambda: made.append("c"))
    queue.dispatch_event()
    queue.reserve()
    fails(Status.QUEUE_FULL, queue.reserve)
    queue.release()
    queue.enqueue(lambda: made.append("d"))
    dispatch(queue)
    assert made == ["a", "b", "c", "d"]
    fails(Status.INVALID_ARG, Queue, "q", 0)


def test_a_destroyed_queue_is_at_its_end() -> None:
    queue = Queue()
    queue.enqueue(lambda: None)
    queue.destroy()
    queue.destroy()
    for call in (queue.dispatch, queue.dispatch_event, queue.reserve, queue.open, queue.start):
        fails(Status.QUEUE_END, call)
    fails(Status.QUEUE_END, queue.dispatch, 0.1)
    fails(Status.QUEUE_END, queue.enqueue, lambda: None)
    assert not queue.put(lambda: None)


def test_a_queue_has_one_dispatcher() -> None:
    queue = Queue()
    with queue.start():
        fails(Status.TOO_MANY_DISPATCHERS, queue.start)
        until(lambda: queue._dispatching is not None)
        fails(Status.TOO_MANY_DISPATCHERS, queue.dispatch)
    queue.dispatch(0.01)
    with ThreadPoolExecutor(1) as other:
        found: list[BaseException | None] = []
        queue.enqueue(lambda: found.append(other.submit(queue.dispatch_event).exception()))
        queue.dispatch_event()
    assert isinstance(found[0], StatusError)
    assert found[0].status is Status.TOO_MANY_DISPATCHERS


def test_its_own_thread_ends_with_the_dispatcher_and_with_the_queue() -> None:
    for end in ("dispatcher", "queue", "call"):
        queue, made = Queue("own"), list[str]()
        dispatcher = queue.start()
        queue.enqueue(lambda made=made: made.append(threading.current_thread().name))  # type: ignore[misc]
        until(lambda made=made: made)  # type: ignore[misc]
        assert made == ["mama-queue-own"]
        if end == "call":
            queue.enqueue(dispatcher.destroy)
        elif end == "queue":
            queue.destroy()
        else:
            dispatcher.destroy()
        until(lambda d=dispatcher: not d._thread.is_alive())  # type: ignore[misc]
        if end != "queue":
            queue.enqueue(lambda made=made: made.append("here"))  # type: ignore[misc]
            dispatch(queue)
            assert made[1:] == ["here"], "without the thread the queue can be dispatched by the caller"


def test_a_raising_call_is_counted_and_logged_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    queue, made = Queue("q"), list[str]()
    queue.enqueue(lambda: made.append(["x"][1]))
    queue.enqueue(lambda: made.append("next"))
    dispatch(queue)
    assert made == ["next"]
    assert queue.callback_errors == 1
    assert "IndexError" in caplog.text

"""Flights by token, and those that wait to go again."""

from __future__ import annotations

import math

import numpy as np
from mama_spark.contracts.message import Int64s
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch
from mama_spark.publishing.window.resend_queue import ResendQueue
from mama_spark.publishing.window.send_index import SendRange

from tests.support.tables import each

# --- what waits to be sent again: the order in which it is due, and what drops out of the queue -----------------------


def waiting(n: int, first_token: int = 0, published: float = 0.0) -> FlightBatch:
    flights = FlightBatch(n)
    flights.state[:] = FlightState.WAITING
    flights.published[:], flights.first_token = published, first_token
    flights.token[:] = np.arange(first_token, first_token + n)
    return flights


def rows(*which: int) -> Int64s:
    return np.array(which, np.int64)


def queue_of(deadline: float) -> ResendQueue:
    return ResendQueue(WindowConfig(retry=RetryPolicy(None, deadline=deadline)))


def drained(queue: ResendQueue) -> list[tuple[float, list[int]]]:
    found = []
    while (head := queue.head()) is not None:
        found.append((head.due, head.rows.tolist()))
        head.flights.state[head.rows] = FlightState.IN_FLIGHT
    return found


def test_what_is_due_first_is_the_head_and_of_equals_what_came_first() -> None:
    queue, flights = queue_of(60.0), waiting(6)
    for due, which in ((3.0, rows(0)), (1.0, rows(1, 2)), (2.0, rows(3)), (1.0, rows(4))):
        queue.push(due, flights, which)
    assert drained(queue) == [(1.0, [1, 2]), (1.0, [4]), (2.0, [3]), (3.0, [0])]
    assert queue.head() is None


def test_flights_that_were_acknowledged_meanwhile_are_no_part_of_the_head() -> None:
    queue, flights = queue_of(60.0), waiting(3)
    queue.push(1.0, flights, rows(0, 1))
    queue.push(2.0, flights, rows(2))
    flights.state[0] = FlightState.ACKED
    head = queue.head()
    assert head is not None
    assert head.rows.tolist() == [1]
    flights.state[1] = FlightState.ACKED
    assert drained(queue) == [(2.0, [2])]


def test_merged_entries_go_in_the_order_of_the_first_send_when_the_last_of_them_is_due() -> None:
    queue, early, late, done = queue_of(60.0), waiting(4, 0, 1.0), waiting(2, 4, 2.0), waiting(1, 6, 3.0)
    queue.push(1.0, late, rows(1, 0))
    queue.push(5.0, early, rows(3))
    queue.push(2.0, early, rows(2, 0))
    queue.push(3.0, done, rows(0))
    early.state[2] = done.state[0] = FlightState.ACKED
    queue.merge()
    head = queue.head()
    assert head is not None
    assert (head.flights, head.deadline) == (early, 61.0)
    assert drained(queue) == [(5.0, [0, 3]), (5.0, [0, 1])]


def test_what_may_go_no_more_is_removed_and_the_rest_stays() -> None:
    queue, flights = queue_of(10.0), waiting(4)
    flights.published[:] = [0.0, 10.0, 20.0, 30.0]
    queue.push(1.0, flights, rows(0, 1))
    queue.push(2.0, flights, rows(2, 3))
    assert queue.next_deadline == 10.0
    assert list(queue.expire(9.9)) == []
    removed = []
    for now in (10.0, 35.0, 40.0):
        for _, which in queue.expire(now):
            removed.append((now, which.tolist()))
            flights.state[which] = FlightState.TIMEOUT
    assert removed == [(10.0, [0]), (35.0, [1]), (35.0, [2]), (40.0, [3])]
    assert queue.next_deadline == math.inf
    assert queue.head() is None


# --- which rows the answered tokens of one range of sends are ---------------------------------------------------------

FIRST, N = 100, 8


@each("answered", [[0], [7], [0, 1, 2], [2, 3, 4], [0, 2, 3], [1, 4, 7], [0, 7], list(range(8))])
@each("rows", [slice(10, 10 + N), np.array([3, 1, 4, 15, 9, 2, 6, 5])])
def test_each_token_is_the_row_that_was_sent_with_it(rows: slice, answered: list[int]) -> None:
    sends = SendRange(FIRST, FIRST + N, FlightBatch(20), rows, 0.0)
    everything = np.arange(20)
    picked = everything[sends.pick(FIRST + np.array(answered))]
    assert picked.tolist() == everything[rows][answered].tolist()

"""Which clients have come back after a restart of a source, and what the others missed."""

from __future__ import annotations

from mama_spark.tango.source.awaited_clients import AwaitedClients, AwaitedSubscription, Place
from mama_spark.tango.types import EventType

from tests.support.tables import each

PLACE: Place = ("lab/cell/1", "temperature", EventType.CHANGE)
A, B, C = "10.0.0.1 1", "10.0.0.1 2", "10.0.0.2 1"


@each(
    ("connections", "before", "now", "clients", "missing"),
    [
        (2, {A, B}, 2, {A, B}, 0),
        (2, {A, B}, 1, {A, B}, 1),  # one has negotiated, and its subscription has not reached the socket
        (2, {A, B}, 2, {A, C}, 1),  # another client connected meanwhile
        (2, {A, B}, 3, {A, B, C}, 0),
        (1, {A, B}, 1, {B}, 0),  # one of two had left
        (1, {A, B}, 1, {C}, 1),
        (2, {A}, 2, {A}, 0),  # two connections of one process
        (2, set(), 1, {A}, 1),  # a position of an earlier release
        (2, set(), 2, {A}, 0),
    ],
)
def test_clients_are_missing_until_they_have_negotiated_and_connected_again(
    connections: int, before: set[str], now: int, clients: set[str], missing: int
) -> None:
    assert AwaitedSubscription(connections, frozenset(before)).missing(now, frozenset(clients)) == missing


def test_events_that_were_pushed_while_clients_were_missing_are_counted_and_told_once() -> None:
    awaited = AwaitedClients({PLACE: AwaitedSubscription(2, frozenset((A, B)))})
    missing = awaited.missing({PLACE: 1}, {PLACE: frozenset((A,))})
    awaited.pushed({PLACE: 3}, 11, 15, missing)
    awaited.pushed({PLACE: 1}, 16, 20, missing)
    awaited.pushed({(*PLACE[:2], EventType.USER): 7}, 16, 20, missing)  # nobody waited for these
    assert awaited.not_delivered == 4
    assert awaited.lines(missing) == [
        "not_delivered: records 11 to 20 to 1 of 2 clients of change events of lab/cell/1/temperature"
    ]
    assert awaited.lines(missing) == []
    assert awaited.lines({}) == []
    assert not awaited.wanted

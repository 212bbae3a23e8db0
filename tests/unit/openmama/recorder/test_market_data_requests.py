"""What a recorder asks publishers for, and when again."""

from __future__ import annotations

import pytest
from mama_spark.openmama.recorder import market_data_requests
from mama_spark.openmama.recorder.market_data_requests import ASK_AGAIN, Asks, MarketDataAsk, MarketDataRequests

from tests.support.tables import each

IBM = MarketDataAsk(Asks.IMAGE, "OM", "IBM")
DICTIONARIES = [MarketDataAsk(Asks.DICTIONARY, source) for source in ("OM", "WOMBAT")]


def requests() -> MarketDataRequests:
    return MarketDataRequests([("OM", "IBM")], ["OM", "WOMBAT"], 10.0)


def there(topic: str) -> bool:
    return topic == "_MD.OM"


def test_nobody_is_asked_before_he_is_there() -> None:
    asks = requests()
    assert asks.due(0.0, lambda topic: False) == ([], [])
    assert asks.due(5.0, there) == ([IBM], [])


def test_an_answer_that_does_not_come_is_asked_for_three_times_and_then_each_minute() -> None:
    asks = requests()
    times = [0.0, 10.0, 20.0, 30.0, 30.0 + ASK_AGAIN, 30.0 + 2 * ASK_AGAIN]
    found = [asks.due(now, there) for now in times]
    assert [sent for sent, _ in found] == [[IBM]] * len(times)
    assert [failed for _, failed in found] == [[]] * market_data_requests.ATTEMPTS + [[IBM]] + [[]] * 2
    assert asks.due(times[-1] + 1, there) == ([], [])


def test_what_was_answered_is_not_asked_again() -> None:
    asks = requests()
    asks.due(0.0, there)
    asks.came(IBM)
    assert asks.answered == len(asks) == 1
    assert asks.due(100.0, there) == ([], [])


def test_a_publisher_that_comes_anew_is_asked_anew() -> None:
    asks = requests()
    asks.due(0.0, there)
    asks.came(IBM)
    asks.publisher_came("_MD.OTHER")
    assert asks.due(1.0, there) == ([], [])
    asks.publisher_came("_MD.OM")
    assert asks.due(1.0, there) == ([IBM], [])


def test_one_dictionary_is_enough() -> None:
    asks = requests()
    assert set(asks.due(0.0, lambda topic: True)[0]) == {IBM, *DICTIONARIES}
    asks.came(DICTIONARIES[1])
    asks.publisher_came("_MDDD.OM")
    assert set(asks.due(100.0, lambda topic: True)[0]) == {IBM}


@pytest.mark.spec("OW18")
def test_a_gap_has_one_recap_a_second_at_most() -> None:
    asks = requests()
    asks.came(IBM)
    recap = MarketDataAsk(Asks.RECAP, "OM", "IBM")
    for now in (1.0, 1.1, 2.5):
        asks.gap("OM.IBM", now)
        asks.gap("OM.OTHER", now)
        sent, _ = asks.due(now, there)
        assert sent == ([] if now == 1.1 else [recap])


@each(("answered", "times"), [(False, [1.0, 11.0, 21.0]), (True, [1.0])])
def test_a_recap_that_does_not_come_is_asked_for_again(answered: bool, times: list[float]) -> None:
    asks, recap = requests(), MarketDataAsk(Asks.RECAP, "OM", "IBM")
    asks.came(IBM)
    asks.gap("OM.IBM", 1.0)
    asked = []
    for now in (1.0, 11.0, 21.0, 31.0, 91.0, 151.0):
        sent, failed = asks.due(now, there)
        asked += [now] * (sent == [recap])
        assert not failed
        if answered:
            asks.came(recap)
    assert asked == times
    assert asks.answered == 1
    asks.gap("OM.IBM", 200.0)
    asks.publisher_came("_MD.OM")
    assert asks.due(200.0, there) == ([IBM], []), "its image says what is true now"

"""Requests of a recorder to publishers, and their repetition. Pure: times in, requests out.

A symbol is asked for once a publisher of its source is there: an earlier request is lost without trace. Without an
answer within the timeout it is asked for three times in all, then each minute; recaps are not, as the next gap asks for
one. A publisher that comes anew is asked anew: it does not know the subscribers of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mama_spark.openmama.wire.market_data import dictionary_topic, subscription_topic

ATTEMPTS = 3
ASK_AGAIN = 60.0  #: seconds after the last attempt
RECAP_PAUSE = 1.0  #: seconds between two recaps of a symbol: a publisher that numbers wrongly would be asked for ever


class Asks(Enum):
    IMAGE = "image"
    RECAP = "recap"
    DICTIONARY = "dictionary"


class MarketDataAsk(NamedTuple):
    """One request to send; ``symbol`` empty: the dictionary of the source."""

    asks: Asks
    source: str
    symbol: str = ""

    @property
    def topic(self) -> str:
        return dictionary_topic(self.source) if self.asks is Asks.DICTIONARY else subscription_topic(self.source)


@dataclass(slots=True)
class _State:
    attempts: int = 0
    due: float = 0.0  #: when it is asked, or asked again
    answered: bool = False  #: or not asked for any more
    begun: float = 0.0  #: of a recap: when the gap was seen


class MarketDataRequests:
    """The requests of one recorder; ``timeout``: seconds until an attempt is over."""

    def __init__(self, symbols: Iterable[tuple[str, str]], dictionaries: Iterable[str], timeout: float) -> None:
        self._timeout = timeout
        self._states = {MarketDataAsk(Asks.IMAGE, *symbol): _State() for symbol in symbols}
        self._states |= {MarketDataAsk(Asks.DICTIONARY, source): _State() for source in dictionaries}
        self._symbols = {(ask.source, ask.symbol) for ask in self._states if ask.symbol}

    def __len__(self) -> int:
        return len(self._symbols)

    @property
    def answered(self) -> int:
        """Number of symbols whose image came."""
        return sum(state.answered for ask, state in self._states.items() if ask.asks is Asks.IMAGE)

    def due(self, now: float, is_there: Callable[[str], bool]) -> tuple[list[MarketDataAsk], list[MarketDataAsk]]:
        """Requests to send now; and symbols whose last attempt was not answered.

        :param is_there: tells whether somebody receives requests to a topic
        """
        send: list[MarketDataAsk] = []
        failed: list[MarketDataAsk] = []
        there: dict[str, bool] = {}
        for ask, state in self._states.items():
            if state.answered or now < state.due:
                continue
            topic = ask.topic
            if topic not in there:
                there[topic] = is_there(topic)
            if not there[topic]:
                state.attempts = 0
                continue
            if state.attempts == ATTEMPTS and ask.asks is Asks.RECAP:
                state.answered = True
                continue
            if state.attempts == ATTEMPTS and ask.asks is Asks.IMAGE:
                failed.append(ask)
            state.attempts += 1
            state.due = now + (self._timeout if state.attempts <= ATTEMPTS else ASK_AGAIN)
            send.append(ask)
        return send, failed

    def came(self, ask: MarketDataAsk) -> None:
        """Note an answer; one dictionary is enough."""
        if ask.asks is Asks.DICTIONARY:
            for other, state in self._states.items():
                state.answered |= other.asks is Asks.DICTIONARY
        elif (found := self._states.get(ask)) is not None:
            found.answered = True

    def gap(self, topic: str, now: float) -> None:
        """Note missing messages of a topic: a recap is asked for."""
        source, _, symbol = topic.partition(".")
        ask = MarketDataAsk(Asks.RECAP, source, symbol)
        before = self._states.get(ask)
        if (source, symbol) in self._symbols and (before is None or now >= before.begun + RECAP_PAUSE):
            self._states[ask] = _State(begun=now)

    def publisher_came(self, prefix: str) -> None:
        """Note a new receiver of topics that begin so: it is asked for what it may have."""
        for ask, state in self._states.items():
            if ask.topic.startswith(prefix) and (ask.symbol or not state.answered):
                state.answered, state.attempts, state.due = ask.asks is Asks.RECAP, 0, 0.0  # the image is enough

"""Callbacks of a market data source as events of the flight log and of discovery. Pure.

| what happens | kind, event | columns |
|---|---|---|
| the source begins, serves, ends | publisher; create, live, destroy | state |
| it cannot go on | publisher, error | status, info |
| a callback: onCreate, onRequest, onNewRequest, onRefresh, onMsg, onError, onDestroy | topic, its name | topic, source, symbol, status, info |
| a topic has its first reader, or none any more | topic; SUBSCRIBED, UNSUBSCRIBED | the same |
"""  # noqa: E501

from __future__ import annotations

from collections import Counter

from mama_spark.mama.messages.event_records import CREATE, DESTROY, ERROR, LIVE, PUBLISHER, TOPIC, EventRecord

from .market_data_source import PublisherEvent

MAX_WAITING = 10_000
_STATES = {CREATE: "CREATING", LIVE: "LIVE", ERROR: "LIVE", DESTROY: "DESTROYED"}


class SourceEvents:
    """Events that wait to be stored, in order. Of those beyond ``most``, only how many there were of each callback is
    kept: whoever sends requests decides how many events there are.

    :param sender: of the source
    """

    def __init__(self, source: str, sender: int, most: int = MAX_WAITING) -> None:
        self._source, self._sender, self._most = source, sender, most
        self._waiting: list[EventRecord] = []
        self._omitted: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def publisher(self) -> str:
        """Identity of the publisher in all events."""
        return f"{self._source}/{self._sender}"

    def lifecycle(self, event: str, at: int, *, status: str | None = None, info: str | None = None) -> None:
        """What happens to the source itself.

        :param event: ``create``, ``live``, ``error`` or ``destroy``
        :param at: microseconds since the epoch
        """
        state = _STATES[event]
        self._waiting.append(self._event(PUBLISHER, event, at, status=status, info=info, state=state))

    def callback(self, event: PublisherEvent, at: int) -> None:
        """A callback of the publisher.

        :param at: microseconds since the epoch
        """
        if len(self._waiting) >= self._most:
            self._omitted[event.callback] += 1
            return
        symbol = event.symbol or None
        topic = f"{self._source}.{symbol}" if symbol else None
        self._waiting.append(
            self._event(TOPIC, event.callback, at, topic=topic, symbol=symbol, source=self._source if symbol else None,
                        status=event.status or None, info=event.info or None)
        )  # fmt: skip

    def take(self, at: int) -> list[EventRecord]:
        """What waits, and one event for each callback of which some were omitted."""
        taken, self._waiting = self._waiting, []
        omitted, self._omitted = self._omitted, Counter()
        more = "more of them, each without an event of its own"
        return [*taken, *(self._event(TOPIC, name, at, info=f"{n:,} {more}") for name, n in omitted.items())]

    def _event(
        self, kind: str, name: str, at: int, *, topic: str | None = None, source: str | None = None,
        symbol: str | None = None, status: str | None = None, info: str | None = None, state: str | None = None,
    ) -> EventRecord:  # fmt: skip
        return EventRecord(
            kind, name, at, self._source, self._sender, topic=topic, source=source, symbol=symbol, status=status,
            info=info, publisher=self.publisher, state=state,
        )  # fmt: skip

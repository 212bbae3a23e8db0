"""Plans the fetches of a range of a stored stream. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from mama_spark.malamute.client.log_query_client import PendingQuery
from mama_spark.malamute.protocol.log_query import (
    FETCH_OCTETS,
    FETCH_ROWS,
    LOOK,
    LogQuery,
    LogQueryAnswer,
    Op,
    Selection,
    parse_numbers,
)

#: Fetches that are sent at a time: the broker makes one while another travels and a third is decoded.
AHEAD = 3


@dataclass(slots=True)
class _Part:
    """A query for ``after < sequence <= up_to`` that was sent."""

    after: int
    up_to: int
    pending: PendingQuery


class ReadSession:
    """Splits a range of sequences into fetches, so that answers are full and come in order; it sends none itself.

    An answer is limited in bytes, so a part may come back unfinished; the rest of it is then queried, before the parts
    that were queried meanwhile.

    :param ids: fetch ids that begin with this only, instead of messages
    """

    def __init__(
        self,
        after: int,
        up_to: int,
        selection: Selection,
        texts: tuple[bytes, ...],
        *,
        ids: bytes | None = None,
    ) -> None:
        self.parts: deque[_Part] = deque()
        self._done, self._end = after, up_to  # all up to ``_done`` is read
        self._next = after
        self._selection, self._texts = selection, texts
        self._op, self._prefix = (Op.BLOCK, b"") if ids is None else (Op.IDS, ids)
        self._rows = FETCH_ROWS if ids is None else LOOK
        self._end_known = False
        self._width = FETCH_ROWS
        self._rest: tuple[int, int] | None = None
        self._queried: list[tuple[int, int]] = []

    @property
    def complete(self) -> bool:
        return self._done >= self._end

    def queries(self, stream: bytes) -> Iterator[LogQuery]:
        """Queries to be sent now; call :meth:`sent` for each before the next."""
        while True:
            if self._rest is not None:
                low, high = self._rest
            elif self._next < self._end and len(self.parts) < (AHEAD if self._end_known else 1):
                low, high = self._next, min(self._next + self._width, self._end)
            else:
                return
            self._queried = [(low, high)]
            numbers = (low, high, self._rows, FETCH_OCTETS)
            yield LogQuery(self._op, 0, stream, numbers, self._prefix, self._selection, self._texts)

    def sent(self, pending: PendingQuery) -> None:
        part = _Part(*self._queried.pop(), pending)
        if self._rest is not None:
            self._rest = None
            self.parts.appendleft(part)
        else:
            self.parts.append(part)
            self._next = part.up_to

    def take(self, answer: LogQueryAnswer) -> None:
        """Take the answer to the first part."""
        part = self.parts.popleft()
        (reached, last), _ = parse_numbers(answer.body, 2)
        if not self._end_known:
            self._end_known, self._end = True, min(self._end, last)
        whole = reached >= min(part.up_to, self._end)
        self._done = max(self._done, min(part.up_to, self._end) if whole else reached)
        examined = max(1, reached - part.after)
        if whole:
            most = self._rows if self._selection is Selection.ALL else LOOK
            self._width = min(most, max(self._width, 2 * examined))
        else:
            self._width = max(1, examined * 7 // 8)
            self._rest = (reached, part.up_to)

    def restart(self) -> None:
        """The connection was lost: query again what was not answered."""
        self.parts.clear()
        self._rest, self._next = None, self._done

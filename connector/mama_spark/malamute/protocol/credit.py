"""Credit in both directions: what engines may deliver to a client, and what a client may send to them. Pure.

A client's credit counts messages of all kinds and streams together (ML-21), while each engine that holds what is beyond
it decides by itself when to deliver. So the credit is **lent**: an engine has a share, delivers against it, and gets
more as its deliveries come.
Shares never exceed the credit, so nothing that an engine delivers is ever too much. What one engine has and does not
use is called back when another one used all of its own, or when a message of another kind waits; with less credit than
streams, it goes round.

A client without credit (the C client) is lent a window, and the window only as long as its socket takes what is
delivered: an engine that holds is never overrun by a slow reader.

A client that publishes has an :class:`SendWindow` in octets: what it sends costs, what the engines have taken is given
back. So publishers that keep to it never have more under way than engines take, and need not be stopped.
"""

from __future__ import annotations


class DeliveryCredit:
    """How many deliveries a receiver still takes: any number until it gives the first credit.

    :ivar left: None = any number
    """

    __slots__ = ("left",)

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def __repr__(self) -> str:
        return "any" if self.left is None else str(self.left)

    def give(self, amount: int | None) -> None:
        """Add to it; a negative amount takes back some of what is left, None lifts the limit."""
        self.left = None if amount is None else (self.left or 0) + amount

    def use(self) -> bool:
        """Count one delivery; False: there is no credit for it, and nothing was counted."""
        left = self.left
        if left is None:
            return True
        if left <= 0:
            return False
        self.left = left - 1
        return True

    def take_back(self) -> int:
        """Take all that is left, and return it; 0 if there is no limit."""
        left, self.left = self.left or 0, None if self.left is None else 0
        return left

    @property
    def exhausted(self) -> bool:
        return self.left == 0

    def limit(self, most: int) -> int:
        """How many of ``most`` deliveries it covers."""
        return most if self.left is None else min(self.left, most)


#: Octets that engines may deliver ahead of a client's socket, and messages however small they are.
WINDOW_OCTETS = 8 * 1024 * 1024
WINDOW = 8192
#: What a message is taken to weigh before the first one came.
_GUESS = 8 * 1024
#: Seconds until credit that nobody uses goes on to a stream that has none; doubles as long as nothing is delivered.
TURN, LONGEST_TURN = 0.02, 1.0


class CreditAllocator:
    """What the engines of one client's streams may deliver still.

    :ivar lent: sum of all shares
    """

    __slots__ = ("lent", "limit", "due", "turn", "_shares", "_leaving", "_recalled", "_hungry", "_weight", "_half")

    def __init__(self, limit: int = WINDOW_OCTETS) -> None:
        self.lent = 0
        self.limit = limit
        self.due: float | None = None  #: when :meth:`rotate` is to be called
        self.turn = TURN
        self._shares: dict[bytes, int] = {}  # that waits longest for a loan first
        self._leaving: dict[bytes, list[int]] = {}  # shares of subscriptions whose CANCEL is not answered
        self._recalled: set[bytes] = set()
        self._hungry: set[bytes] = set()
        self._weight: float = _GUESS
        self._half: dict[bytes, int] = {}  # a share below this is filled up

    def __repr__(self) -> str:
        return f"<CreditAllocator {self.lent} lent to {len(self._shares)} streams>"

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def window(self) -> int:
        """Messages that may be lent at once, whatever the credit."""
        return max(len(self._shares), min(WINDOW, int(self.limit / self._weight)), 1)

    def join(self, stream: bytes) -> None:
        self._shares.setdefault(stream, 0)

    def leave(self, stream: bytes) -> None:
        """CANCEL is on its way; what the engine delivers until :meth:`left` is covered still."""
        share = self._shares.pop(stream, None)
        if share is not None:
            self._leaving.setdefault(stream, []).append(share)
            self._forget(stream)

    def left(self, stream: bytes) -> None:
        """The engine answered the oldest CANCEL."""
        leaving = self._leaving.get(stream)
        if leaving:
            self.lent -= leaving.pop(0)
            if not leaving:
                del self._leaving[stream]

    def lost(self, stream: bytes) -> None:
        """The engine is gone."""
        self.lent -= self._shares.pop(stream, 0) + sum(self._leaving.pop(stream, ()))
        self._forget(stream)

    def _forget(self, stream: bytes) -> None:
        self._recalled.discard(stream)
        self._hungry.discard(stream)
        self._half.pop(stream, None)

    def use(self, stream: bytes, octets: int) -> bool:
        """One delivery came. False: the engine had no share, which an engine that keeps the rules never does."""
        leaving = self._leaving.get(stream)
        if leaving:
            if not leaving[0]:
                return False
            leaving[0] -= 1
        else:
            share = self._shares.get(stream, 0)
            if not share:
                return False
            self._shares[stream] = share - 1
            if share == 1:
                self._hungry.add(stream)
        self.lent -= 1
        self.turn = TURN
        self._weight += (octets - self._weight) / 16
        return True

    def low(self, stream: bytes) -> bool:
        return self._shares.get(stream, 1) <= self._half.get(stream, 0)

    def returned(self, stream: bytes, amount: int) -> None:
        """The engine gave back what it had not used."""
        self._recalled.discard(stream)
        if stream in self._shares:
            amount = min(amount, self._shares[stream])
            self._shares[stream] -= amount
            self.lent -= amount

    def lend(self, free: int) -> list[tuple[bytes, int]]:
        """Lend what is free: stream and amount."""
        loans: list[tuple[bytes, int]] = []
        fair = max(1, (free + self.lent) // max(1, len(self._shares)))
        for stream in list(self._shares):
            if free <= 0:
                break
            share = self._shares[stream]
            if stream in self._recalled or (share and not self.low(stream)):
                continue
            want = max(fair, free // 2) if stream in self._hungry else fair
            amount = min(free, want - share)
            if amount > 0:
                del self._shares[stream]
                self._shares[stream] = share + amount
                self._half[stream] = (share + amount) // 2
                self._hungry.discard(stream)
                self.lent += amount
                free -= amount
                loans.append((stream, amount))
        return loans

    def recall(self, waiting: bool, now: float) -> list[bytes]:
        """Streams that shall give back what they have not used, as there is no more to lend.

        :param waiting: something that is not of these streams waits for credit
        """
        empty = [stream for stream, share in self._shares.items() if not share]
        if waiting or any(stream in self._hungry for stream in empty):
            self.due = None
            return self._call_back()
        if empty and self.lent and not self._recalled:
            self.due = self.due or now + self.turn
        else:
            self.due = None
        return []

    def rotate(self) -> list[bytes]:
        """As :meth:`recall`: a stream has had no share for a while."""
        self.due = None
        self.turn = min(LONGEST_TURN, self.turn * 2)
        return self._call_back()

    def _call_back(self) -> list[bytes]:
        streams = [stream for stream, share in self._shares.items() if share and stream not in self._recalled]
        self._recalled.update(streams)
        return streams


#: Octets that a client may have under way to engines, at most and at least.
MOST_SENT, LEAST_SENT = 8 * 1024 * 1024, 64 * 1024
#: What a message costs beyond the octets of its frames.
MESSAGE = 256


class SendWindow:
    """What one client may send to streams, as the broker sees it, in octets: those of the frames, and :data:`MESSAGE`
    a message. The client may send as long as it is above 0, so one message may be larger than what is left.

    :ivar left: what the client may send still
    :ivar under_way: what it sent and engines have not answered for
    :ivar used: the client has sent something
    """

    __slots__ = ("left", "under_way", "used", "_unasked")

    def __init__(self) -> None:
        self.left = 0
        self.under_way = 0
        self.used = False
        self._unasked = 0  # of that, what no PING has asked for

    def __repr__(self) -> str:
        return f"<SendWindow {self.left} left, {self.under_way} under way>"

    def sent(self, octets: int, messages: int = 1) -> None:
        cost = octets + MESSAGE * messages
        self.left -= cost
        self.under_way += cost
        self._unasked += cost

    def asked(self) -> int:
        """A PING: what its answer covers."""
        octets, self._unasked = self._unasked, 0
        return octets

    def answered(self, octets: int) -> None:
        self.under_way -= octets

    def grant(self, window: int) -> int:
        """Give the client as much as makes ``window`` of what it may send and what is under way."""
        amount = max(0, window - self.left - self.under_way)
        self.left += amount
        return amount


def window_for(publishers: int, backlog: int) -> int:
    """Octets that each of so many publishers may have under way to streams with this limit."""
    return max(LEAST_SENT, min(MOST_SENT, backlog // (2 * max(1, publishers))))

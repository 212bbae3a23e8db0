"""Flow control in both directions: deliveries to a client, and what a client sends to streams. Pure.

A client's credit counts messages of all kinds and streams together (ML-21), while each engine with flow control decides
by itself when to deliver. :class:`CreditAllocator` therefore *lends* the credit to those engines: an engine has a
share, uses it for deliveries, and is lent more as it delivers. The sum of the shares never exceeds the credit. An
unused share is recalled when another engine has used all of its own, or when a message of another kind waits; with less
credit than streams, the credit rotates among them.

A client that gives no credit (the C client) is treated as if it gave :attr:`CreditAllocator.window` at a time, and only
while its socket accepts deliveries, so a slow reader does not make an engine fill the broker's memory.

A client that publishes has a send window in bytes: sent bytes are subtracted, bytes that the engines have answered are
granted again. This bounds the unanswered bytes of each publisher. The broker has a :class:`SendWindow` per client, the
client a :class:`GrantedWindow`.
"""

from __future__ import annotations


class DeliveryCredit:
    """Number of deliveries that a receiver still accepts: unlimited (None) until it gives the first credit."""

    __slots__ = ("left",)

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def give(self, amount: int | None) -> None:
        """Add credit; a negative amount takes back unused credit, None removes the limit."""
        self.left = None if amount is None else (self.left or 0) + amount

    def use(self) -> bool:
        """Count one delivery; False: there is no credit for it."""
        left = self.left
        if left is None:
            return True
        if left <= 0:
            return False
        self.left = left - 1
        return True

    def take_back(self) -> int:
        """Remove and return the unused credit; 0 if there is no limit."""
        left, self.left = self.left or 0, None if self.left is None else 0
        return left

    @property
    def exhausted(self) -> bool:
        return self.left == 0

    def limit(self, most: int) -> int:
        """The number of deliveries covered, at most ``most``."""
        return most if self.left is None else min(self.left, most)


#: Bytes and messages that engines may deliver ahead of a client's socket.
DELIVERY_WINDOW_BYTES = 8 * 1024 * 1024
DELIVERY_WINDOW = 8192
#: Assumed bytes of a delivery, before the first one.
_INITIAL_MEAN_BYTES = 8 * 1024
#: Seconds until an unused share is recalled for a stream without one; doubles as long as nothing is delivered.
ROTATION, LONGEST_ROTATION = 0.02, 1.0


class CreditAllocator:
    """Lends the credit of one client to the engines of its streams: ``limit`` bytes may be delivered ahead of its
    socket; ``lent`` is the sum of all shares, deliveries that the engines may still make."""

    __slots__ = (
        "lent", "limit", "rotation_due", "rotation_interval", "_shares", "_cancelling", "_recalled", "_exhausted",
        "_mean_bytes", "_refill_below",
    )  # fmt: skip

    def __init__(self, limit: int = DELIVERY_WINDOW_BYTES) -> None:
        self.lent = 0
        self.limit = limit
        self.rotation_due: float | None = None
        self.rotation_interval = ROTATION
        self._shares: dict[bytes, int] = {}  # deliveries left per engine; longest without a refill first
        self._cancelling: dict[bytes, list[int]] = {}  # shares of subscriptions with an unanswered CANCEL
        self._recalled: set[bytes] = set()
        self._exhausted: set[bytes] = set()
        self._mean_bytes: float = _INITIAL_MEAN_BYTES
        self._refill_below: dict[bytes, int] = {}  # shares at or below this are refilled

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def window(self) -> int:
        """Deliveries that may be lent at a time, regardless of credit."""
        return max(len(self._shares), min(DELIVERY_WINDOW, int(self.limit / self._mean_bytes)), 1)

    def free(self, credit: DeliveryCredit, undelivered: int) -> int:
        """Deliveries that can be lent now; ``undelivered`` lent ones wait for the client's socket or credit."""
        return credit.limit(self.window) - self.lent - undelivered

    def leaves_credit(self, credit: DeliveryCredit) -> bool:
        """Whether the client has credit that is not lent, for a message from elsewhere than these engines."""
        return credit.left is None or credit.left > self.lent

    def add_stream(self, stream: bytes) -> None:
        """The share of a new stream is 0 until :meth:`lend`."""
        self._shares.setdefault(stream, 0)

    def cancel(self, stream: bytes) -> None:
        """To be called when CANCEL is sent; deliveries of the engine before :meth:`cancelled` still use the share."""
        share = self._shares.pop(stream, None)
        if share is not None:
            self._cancelling.setdefault(stream, []).append(share)
            self._clear_flags(stream)

    def cancelled(self, stream: bytes) -> None:
        """The engine has answered the oldest CANCEL."""
        cancelling = self._cancelling.get(stream)
        if cancelling:
            self.lent -= cancelling.pop(0)
            if not cancelling:
                del self._cancelling[stream]

    def remove(self, stream: bytes) -> None:
        """Free the share of an engine that has failed."""
        self.lent -= self._shares.pop(stream, 0) + sum(self._cancelling.pop(stream, ()))
        self._clear_flags(stream)

    def _clear_flags(self, stream: bytes) -> None:
        self._recalled.discard(stream)
        self._exhausted.discard(stream)
        self._refill_below.pop(stream, None)

    def use(self, stream: bytes, message_bytes: int) -> bool:
        """Count one delivery of the engine; False if its share was used up: a defect of the engine."""
        cancelling = self._cancelling.get(stream)
        if cancelling:
            if not cancelling[0]:
                return False
            cancelling[0] -= 1
        else:
            share = self._shares.get(stream, 0)
            if not share:
                return False
            self._shares[stream] = share - 1
            if share == 1:
                self._exhausted.add(stream)
        self.lent -= 1
        self.rotation_interval = ROTATION
        self._mean_bytes += (message_bytes - self._mean_bytes) / 16
        return True

    def needs_refill(self, stream: bytes) -> bool:
        """Whether half of the engine's last refill is used."""
        return self._shares.get(stream, 1) <= self._refill_below.get(stream, 0)

    def returned(self, stream: bytes, amount: int) -> None:
        """Take back a part of the engine's share that it returned after a recall."""
        self._recalled.discard(stream)
        if stream in self._shares:
            amount = min(amount, self._shares[stream])
            self._shares[stream] -= amount
            self.lent -= amount

    def lend(self, free: int) -> list[tuple[bytes, int]]:
        """Distribute ``free`` deliveries; returns stream and amount of each engine that gets more."""
        allocations: list[tuple[bytes, int]] = []
        fair_share = max(1, (free + self.lent) // max(1, len(self._shares)))
        for stream in list(self._shares):
            if free <= 0:
                break
            share = self._shares[stream]
            if stream in self._recalled or (share and not self.needs_refill(stream)):
                continue
            want = max(fair_share, free // 2) if stream in self._exhausted else fair_share
            amount = min(free, want - share)
            if amount > 0:
                del self._shares[stream]
                self._shares[stream] = share + amount
                self._refill_below[stream] = (share + amount) // 2
                self._exhausted.discard(stream)
                self.lent += amount
                free -= amount
                allocations.append((stream, amount))
        return allocations

    def recall(self, waiting: bool, now: float) -> list[bytes]:
        """Streams whose engines must return unused shares, because nothing is left to lend; ``waiting``: a message from
        elsewhere than these streams waits for credit."""
        empty = [stream for stream, share in self._shares.items() if not share]
        if waiting or any(stream in self._exhausted for stream in empty):
            self.rotation_due = None
            return self._recall_all()
        if empty and self.lent and not self._recalled:
            self.rotation_due = self.rotation_due or now + self.rotation_interval
        else:
            self.rotation_due = None
        return []

    def rotate(self) -> list[bytes]:
        """The streams of :meth:`recall`, at :attr:`rotation_due`: a stream had no share for a whole interval."""
        self.rotation_due = None
        self.rotation_interval = min(LONGEST_ROTATION, self.rotation_interval * 2)
        return self._recall_all()

    def _recall_all(self) -> list[bytes]:
        streams = [stream for stream, share in self._shares.items() if share and stream not in self._recalled]
        self._recalled.update(streams)
        return streams


#: Most and least bytes of a send window.
MAX_SEND_WINDOW, MIN_SEND_WINDOW = 8 * 1024 * 1024, 64 * 1024
#: Bytes that a message costs in addition to its frames: clients and broker count alike.
MESSAGE_OVERHEAD = 256


def send_cost(frame_bytes: int, messages: int) -> int:
    """Bytes that messages with frames of ``frame_bytes`` take of a send window, and of the broker's limits."""
    return frame_bytes + MESSAGE_OVERHEAD * messages


class SendWindow:
    """Bytes that one client may send to streams: bytes of frames, and :data:`MESSAGE_OVERHEAD` per message. It may send
    while :attr:`left` is above 0, so one message may exceed it. ``unanswered``: bytes sent and not answered by engines;
    ``in_use``: the client has sent a message."""

    __slots__ = ("left", "unanswered", "in_use", "_since_ping")

    def __init__(self) -> None:
        self.left = 0
        self.unanswered = 0
        self.in_use = False
        self._since_ping = 0

    def sent(self, frame_bytes: int, messages: int = 1) -> None:
        cost = send_cost(frame_bytes, messages)
        self.left -= cost
        self.unanswered += cost
        self._since_ping += cost

    def ping(self) -> int:
        """To be called at a PING of the client; returns the bytes that its answer covers."""
        covered_bytes, self._since_ping = self._since_ping, 0
        return covered_bytes

    def answered(self, covered_bytes: int) -> None:
        self.unanswered -= covered_bytes

    def grant(self, window: int) -> int:
        """Raise :attr:`left` plus :attr:`unanswered` to ``window``; returns the bytes to grant to the client."""
        amount = max(0, window - self.left - self.unanswered)
        self.left += amount
        return amount


class GrantedWindow:
    """The send window as the client knows it: ``left`` bytes may be sent to streams, None = any number. A PING requests
    more when less than half of the last grant is left."""

    __slots__ = ("left", "_refill_below", "_sent_since_ping")

    def __init__(self) -> None:
        self.left: int | None = None
        self._refill_below = 0
        self._sent_since_ping = False

    def begin(self, *, limited: bool) -> None:
        """A new connection: nothing is granted yet, or the broker has no send windows."""
        self.left = 0 if limited else None
        self._refill_below = 0
        self._sent_since_ping = False

    @property
    def may_send(self) -> bool:
        return self.left is None or self.left > 0

    @property
    def needs_ping(self) -> bool:
        return self.left is not None and self.left < self._refill_below and self._sent_since_ping

    def sent(self, frame_bytes: int, messages: int) -> None:
        if self.left is not None:
            self.left -= send_cost(frame_bytes, messages)
            self._sent_since_ping = True

    def pinged(self) -> None:
        self._sent_since_ping = False

    def grow(self, credit: int | None) -> None:
        """Add the bytes that the broker's answer grants to the send window; None: it grants none."""
        if credit is not None and self.left is not None:
            self.left += credit
            self._refill_below = self.left // 2


def window_for(publishers: int, backlog: int) -> int:
    """Bytes of each publisher's send window; ``backlog`` is the limit of the engine's."""
    return max(MIN_SEND_WINDOW, min(MAX_SEND_WINDOW, backlog // (2 * max(1, publishers))))

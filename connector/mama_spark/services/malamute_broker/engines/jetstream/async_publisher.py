"""Messages on their way into a JetStream stream: sent in columns, many at a time, until the server says what became of
each.

Every message has an id by which the server recognises it, so that what is in doubt after a lost connection or the end
of a leader is sent again without harm. Nothing is sent again before everything that was on the way is answered or given
up, so a lost connection leaves the order as it was; a change of the leader may disturb it, for a server that has none
refuses one message and takes the next. The one who drives this calls :meth:`AsyncPublisher.pump`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mama_spark.bridge import Acks, EventKind, Refusals
from mama_spark.bridges.nats.protocol import headers as hd
from mama_spark.bridges.nats.publish.bridge import NatsBridge
from mama_spark.bridges.nats.settings import NatsSettings
from mama_spark.errors import ClientClosed, Unavailable
from mama_spark.malamute.protocol.extensions import StoreOutcome
from mama_spark.message import HEADERS_TYPE, MessageBatch

from .names import Header, Origin, encode_id, encode_subject, lines

log = logging.getLogger(__name__)

#: Most messages and octets without an answer: what a server stores in some ten milliseconds.
ON_THE_WAY = 4096
CHUNK, CHUNK_OCTETS = 1024, 1024 * 1024
ANSWER = 4.0  #: seconds after which a message without an answer is in doubt
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)  #: seconds between tries
_OVERHEAD = 200  #: octets that a waiting message takes beside its content, about


@dataclass(slots=True, eq=False)
class PendingPublish:
    """One message, from ACCEPT until it came back from the stream or nobody asks for it any more.

    :ivar reader: number of the client, if it reads here
    :ivar outcome: None = nobody knows yet
    :ivar since: monotonic time since when it may be stored; None = it certainly is not
    """

    number: int
    client: Hashable
    reader: int
    sender: bytes
    subject: bytes
    content: Sequence[bytes]
    message_id: bytes = b""
    headers: tuple[Header, ...] = ()
    outcome: StoreOutcome | None = None
    sequence: int = 0
    since: float | None = None
    sent: float = 0.0

    @property
    def octets(self) -> int:
        return _OVERHEAD + sum(map(len, self.content))


class AsyncPublisher:
    """:param engine: name of the engine, for the origin of messages
    :param prefix: of the subjects
    :param window: seconds in which the server recognises an id
    :param buffer: octets that may wait; beyond, messages are refused
    """

    def __init__(self, settings: NatsSettings, engine: str, prefix: str, window: float, buffer: int) -> None:
        self._bridge = NatsBridge(settings)
        self._engine, self._prefix, self._window, self._buffer = engine, prefix, window, buffer
        self._queue: deque[PendingPublish] = deque()
        self._on_way: dict[int, PendingPublish] = {}  # token -> its post, in the order of sending
        self._overdue: dict[int, PendingPublish] = {}  # the same for what was given up and may be answered still
        self._again: list[PendingPublish] = []
        self._hold = 0.0
        self._tries = 0
        self._token = 0
        self._refusing = False
        self.waiting = 0  #: octets of what has no outcome
        self.last = 0  #: highest sequence that the server told
        self.down = False  #: the connection is lost
        self.trouble: float | None = None  #: monotonic time since when nothing gets through

    def __repr__(self) -> str:
        state = "down" if self.down else "in trouble" if self.trouble else "up"
        return f"<AsyncPublisher {state}, {len(self._queue)} queued, {len(self._on_way)} on the way>"

    @property
    def busy(self) -> bool:
        """Messages have no outcome yet."""
        return bool(self._queue or self._on_way or self._again)

    def open(self) -> None:
        """:raises ConfigError, Unavailable: see :class:`~mama_spark.bridge.PublisherBridge`"""
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    def put(self, post: PendingPublish) -> None:
        """Take a message, or refuse it because too much waits."""
        if self.waiting + post.octets > self._buffer and self.waiting:
            post.outcome = StoreOutcome.REFUSED
            if not self._refusing:
                self._refusing = True
                log.error("messages are refused: %d octets wait for NATS already (%s)", self.waiting, self._prefix)
            return
        if self._refusing:
            self._refusing = False
            log.warning("messages are taken again (%s)", self._prefix)
        self.waiting += post.octets
        self._queue.append(post)

    def pump(self, timeout: float) -> None:
        """Send what may go, and hear what came in; waits for answers so many seconds, if some are to come.

        :raises Unavailable: the connection is closed for good, or was lost for longer than ids are recognised
        """
        now = time.monotonic()
        self._send(now)
        self._hear(timeout if self.busy else 0.0)
        self._give_up(time.monotonic())
        if not self.busy:
            self.trouble = None

    # --- out -----------------------------------------------------------------------------------------------------

    def _send(self, now: float) -> None:
        if self._again and not self._on_way:
            self._queue.extendleft(sorted(self._again, key=lambda post: -post.number))
            self._again.clear()
        while self._queue and not (self.down or self._again) and now >= self._hold and len(self._on_way) < ON_THE_WAY:
            if not self._send_some(now):
                return

    def _send_some(self, now: float) -> bool:
        """One chunk; False if the connection takes no more now."""
        chunk: list[PendingPublish] = []
        octets = 0
        while self._queue and len(chunk) < CHUNK and octets < CHUNK_OCTETS:
            post = self._queue.popleft()
            if post.outcome is None:  # else the answer to an earlier try came meanwhile
                self._check_age(post, now)
                chunk.append(post)
                octets += post.octets
        batch = batch_of(chunk, self._engine, self._prefix)
        bad, _ = hd.check(batch, self._bridge.capabilities.max_payload)
        if bad:
            for row, error in bad.items():
                self._settle(chunk[row], StoreOutcome.REFUSED)
                log.warning("a message on %r is refused: %s", chunk[row].subject, error)
            good = [row for row in range(len(chunk)) if row not in bad]
            batch, chunk = batch.take(np.array(good, np.int64)), [chunk[row] for row in good]
        if not chunk:
            return True
        try:
            n = self._bridge.send(batch, self._token)
        except ClientClosed as e:
            raise Unavailable(f"the connection to NATS is closed: {e}") from e
        for token, post in enumerate(chunk[:n], self._token):
            post.since, post.sent = post.since or now, now
            self._on_way[token] = post
        self._token += n
        self._queue.extendleft(reversed(chunk[n:]))
        return n == len(chunk)

    def _check_age(self, post: PendingPublish, now: float) -> None:
        if post.since is not None and now - post.since > 0.9 * self._window:
            raise Unavailable(
                f"nothing was heard of NATS for {now - post.since:.0f} s; the server recognises what was sent before "
                f"for {self._window:g} s only, so nobody can say whether it is stored"
            )

    # --- in ------------------------------------------------------------------------------------------------------

    def _hear(self, timeout: float) -> None:
        polled = self._bridge.poll(timeout)
        for acks in polled.acks:
            self._take(acks)
        for refusals in polled.refusals:
            self._refused(refusals)
        for event in polled.events:
            if event.kind is EventKind.DISCONNECTED:
                self.down = True
                self._trouble()
                self._again += [post for post in self._on_way.values() if post.outcome is None]
                self._on_way.clear()
                self._overdue.clear()
            elif event.kind is EventKind.RECONNECTED:
                self.down, self._hold = False, 0.0
            elif event.kind is EventKind.CLOSED:
                raise Unavailable(event.info)
            else:
                log.warning("%s", event.info)

    def _take(self, acks: Acks) -> None:
        assert acks.sequences is not None, "acknowledgements a message have sequences"
        n = len(acks.tokens)
        repeats = [False] * n if acks.duplicates is None else acks.duplicates.tolist()
        for token, sequence, repeat in zip(acks.tokens.tolist(), acks.sequences.tolist(), repeats, strict=True):
            post = self._on_way.pop(token, None) or self._overdue.pop(token, None)
            if post is not None and post.outcome is None:
                post.sequence = sequence
                known = repeat and post.message_id  # an id of ours is repeated only by ourselves
                self._settle(post, StoreOutcome.DUPLICATE if known else StoreOutcome.STORED)
                self.last = max(self.last, sequence)
        self.trouble, self._tries = None, 0

    def _refused(self, refusals: Refusals) -> None:
        error = refusals.error
        for token in refusals.tokens.tolist():
            post = self._on_way.pop(token, None)
            if post is None or post.outcome is not None:
                continue
            if not error.retryable and not error.may_have_landed:
                self._settle(post, StoreOutcome.REFUSED)
                log.warning("a message on %r is refused: %s", post.subject, error)
                continue
            if not error.may_have_landed and post.since == post.sent:
                post.since = None
            self._again.append(post)
        if self._again:
            self._trouble()

    def _give_up(self, now: float) -> None:
        """What was not answered for long is in doubt."""
        oldest = next(iter(self._on_way.values()), None)
        if oldest is None or now - oldest.sent < ANSWER:
            return
        late = [token for token, post in self._on_way.items() if now - post.sent >= ANSWER]
        for token in late:
            post = self._overdue[token] = self._on_way.pop(token)
            self._again.append(post)
        self._trouble()

    def _trouble(self) -> None:
        now = time.monotonic()
        self.trouble = self.trouble or now
        if now >= self._hold:
            self._hold = now + PAUSES[min(self._tries, len(PAUSES) - 1)]
            self._tries += 1

    def _settle(self, post: PendingPublish, outcome: StoreOutcome) -> None:
        post.outcome = outcome
        self.waiting -= post.octets


def batch_of(posts: Sequence[PendingPublish], engine: str, prefix: str) -> MessageBatch:
    """Messages in columns, one row a post."""
    names: list[str] = []
    values: list[str] = []
    starts = [0]
    ids = []
    for post in posts:
        origin = Origin(engine, post.reader, post.number)
        for name, value in lines(post.sender, post.content, post.message_id, post.headers, origin):
            names.append(name)
            values.append(value)
        starts.append(len(names))
        ids.append(encode_id(post.message_id, origin))
    return MessageBatch(
        pa.array([f"{prefix}.{encode_subject(post.subject)}" for post in posts], pa.string()).dictionary_encode(),
        pa.array(_bodies(posts), pa.binary()),
        _headers(names, values, starts) if names else None,
        pa.array(ids, pa.string()),
    )


def _bodies(posts: Iterable[PendingPublish]) -> list[bytes]:
    return [post.content[0] if len(post.content) == 1 else b"".join(post.content) for post in posts]


def _headers(names: list[str], values: list[str], starts: list[int]) -> pa.Array:
    """Lines as :data:`~mama_spark.message.HEADERS_TYPE`; each name has one value."""
    ones = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    lists = pa.ListArray.from_arrays(ones, pa.array(values, pa.string()))
    return pa.MapArray.from_arrays(pa.array(starts, pa.int32()), pa.array(names, pa.string()), lists, type=HEADERS_TYPE)

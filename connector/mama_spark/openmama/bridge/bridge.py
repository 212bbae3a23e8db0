"""Publisher bridge of OpenMAMA: sends rows to the programs that subscribe to their topics, without a broker.

An acknowledgement means that the message was written to the connection of each reader (``sent``), not that a reader has
it. A full socket takes nothing, so nothing is lost, and no message is sent again, so order is kept.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.bridge import Ack, Acks, Capabilities, PollResult, PublisherBridge, Refusals, ValidationResult
from mama_spark.contracts.errors import BadRow, PublishError, Rejected, TooLarge
from mama_spark.contracts.message import Bools, Int64s, MessageBatch
from mama_spark.contracts.topics import bad_topics
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, reserved_field
from mama_spark.mama.messages.omnm import HEADER, encode
from mama_spark.mama.messages.sequence_numbers import next_number
from mama_spark.openmama.wire.frames import MAX_TOPIC, why_unsendable
from mama_spark.openmama.wire.peer import OpenMamaPeer, PeerInput
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.options import SinkOptions

from .requests import PeerRequests


@dataclass(frozen=True, slots=True)
class OpenMamaSettings:
    """Times in seconds.

    :param acks: False: nothing is acknowledged (``ackMode=none``)
    :param wait_for_subscribers: from the first message on; until then, messages without readers wait
    :param require_subscribers: messages that nobody wants are refused; else they end as ``published``
    :param full_timeout: seconds after which a reader that takes nothing is given up, and messages for it are refused
    """

    peer: PeerSettings
    acks: bool = True
    wait_for_subscribers: float = field(kw_only=True)
    require_subscribers: bool = False
    numbers: bool = False
    full_timeout: float = 5.0

    @classmethod
    def from_options(cls, o: SinkOptions) -> Self:
        """Convert options to settings.

        :raises ConfigError: the url says nothing sound
        """
        peer = PeerSettings.from_urls(o.url)
        if not peer.naming and not peer.incoming:
            peer = peer.without_receiving()
        return cls(
            # fewer than the window: it is full readers, not the window, that hold a task
            replace(
                peer, linger=o.retry_deadline, high_water_mark=max(1, min(peer.high_water_mark, o.max_in_flight // 2))
            ),
            o.ack_mode != "none",
            o.require_subscribers,
            o.mama_numbers,
            o.wait_timeout,
            wait_for_subscribers=o.wait_for_subscribers,
        )


logger = logging.getLogger("mama_spark")

MAX_PAYLOAD = 16 << 20
_RETRY = 0.002  #: seconds until a full socket, or missing readers, are looked at again
_LOOK = 0.005  #: seconds between looks whether all was written
_KNOWN_TOPICS = 100_000


class NoSubscribers(Rejected):
    """Nobody subscribed to the topic in time (``waitForSubscribers``), and ``requireSubscribers`` is on. Not sent."""

    default_status = "NO_SUBSCRIBERS"


class ReaderStalled(Rejected):
    """A reader took nothing for ``waitTimeout``, so that nothing can be sent to its topics. Not sent."""

    default_status = "QUEUE_FULL"


class OpenMamaBridge(PublisherBridge):
    """A :class:`~mama_spark.contracts.bridge.PublisherBridge`; one peer of the network."""

    def __init__(self, settings: OpenMamaSettings) -> None:
        self._settings = settings
        self.peer = OpenMamaPeer(settings.peer)
        self._capabilities = Capabilities(
            ack=Ack.SENT if settings.acks else Ack.NONE, sequence=False, dedup=False, headers=False, ordered=True,
            max_payload=MAX_PAYLOAD, max_topic=MAX_TOPIC, packs=False,
        )  # fmt: skip
        self._polled = PollResult()
        self._requests: PeerRequests | None = None
        self._topics = _KnownTopics(self.peer)
        self._numbers = _Numbers() if settings.numbers else None
        self._readers_until: float | None = None
        self._full_since: float | None = None
        self._given_up = False
        self._blocked = False
        self._held: list[Int64s] = []  # handed over, and written or not
        self._next_look = 0.0

    def __repr__(self) -> str:
        return f"<OpenMamaBridge on {self.peer!r}>"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self) -> None:
        self.peer.open()

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        bad = bad_topics(batch.topics, why_unsendable)
        sizes = np.asarray(pc.fill_null(pc.binary_length(batch.payloads), 0))
        for row in np.flatnonzero(sizes > MAX_PAYLOAD).tolist():
            bad.setdefault(row, TooLarge(f"{sizes[row]} bytes, the most is {MAX_PAYLOAD}"))
        if batch.headers is not None:
            for row in (row for row, pairs in enumerate(batch.headers.to_pylist()) if pairs):
                bad.setdefault(row, BadRow("a message of OpenMAMA has no headers: drop the column, or make it fields"))
        return ValidationResult(sorted(bad.items()))

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """Takes nothing while it waits for readers, or while one of them is slow."""
        self._take(self.peer.poll(0.0))
        now = time.monotonic()
        if self._readers_until is None:
            self._readers_until = now + self._settings.wait_for_subscribers
        codes, names = _used_topics(batch.topics)
        wanted = np.fromiter((self._topics.wanted(name) for name in names), np.bool_, len(names))[codes]
        n = len(batch)
        if now < self._readers_until and not wanted.all():
            n = int(np.argmin(wanted))
        taken = self._send(batch, codes[:n], names, wanted[:n], first_token, now) if n else 0
        self._blocked = taken < len(batch)
        return taken

    def _send(
        self, batch: MessageBatch, codes: Int64s, names: list[str], wanted: Bools, first_token: int, now: float
    ) -> int:
        """Number of messages that were sent or refused."""
        n = len(codes)
        rows = np.flatnonzero(wanted) if self._settings.require_subscribers else np.arange(n)
        frames = self._frames(batch, rows, codes[rows], names)
        sent = self.peer.send_many(frames)
        if self._numbers is not None:
            self._numbers.used(names, codes[rows[:sent]])
        taken = n if sent == len(rows) else int(rows[sent])
        self._answer(first_token + rows[:sent], wanted[rows[:sent]], now)
        unwanted = np.setdiff1d(np.arange(taken), rows, assume_unique=True)
        if len(unwanted):
            topics = ", ".join(sorted({names[code] for code in codes[unwanted].tolist()})[:3])
            waited = f"{self._settings.wait_for_subscribers:g} s"
            self._refuse(first_token + unwanted, NoSubscribers(f"nobody subscribed to {topics} within {waited}"), now)
        return taken if taken == n else self._full(taken, n, first_token, now)

    def _full(self, taken: int, n: int, first_token: int, now: float) -> int:
        if taken or self._full_since is None:
            self._full_since, self._given_up = now, self._given_up and not taken
        timeout = self._settings.full_timeout
        if not self._settings.acks or not (self._given_up or now - self._full_since >= timeout):
            return taken
        self._given_up = True
        error = ReaderStalled(
            f"a reader took nothing for {timeout:g} s (waitTimeout), and a message goes to all readers or to none: let "
            "it go on or end it, or wait longer"
        )
        self._refuse(first_token + np.arange(taken, n), error, now)
        return n

    def _frames(self, batch: MessageBatch, rows: Int64s, codes: Int64s, names: list[str]) -> list[bytes]:
        payloads = batch.payloads if len(rows) == len(batch) else batch.payloads.take(pa.array(rows))
        heads = pa.array([self._topics.head(name) for name in names], pa.binary())
        if self._numbers is not None:
            return self._numbers.frames(heads.to_pylist(), payloads.to_pylist(), names, codes.tolist())
        whole = pc.binary_join_element_wise(heads.take(pa.array(codes)), payloads.cast(pa.binary()), b"")
        found: list[bytes] = whole.to_pylist()
        return found

    def _answer(self, tokens: Int64s, wanted: Bools, now: float) -> None:
        if len(tokens):
            self._full_since = None
            self._given_up = False
        if not self._settings.acks:
            return
        if wanted.any():
            self._held.append(tokens[wanted])
        if not wanted.all():
            self._polled.acks.append(Acks(tokens[~wanted], None, None, None, now, level=Ack.NONE))

    def _acknowledge_written(self, now: float) -> None:
        """Acknowledge what was handed over, once nothing of it waits for a reader."""
        if not self._held or now < self._next_look:
            return
        self._next_look = now + _LOOK
        if self.peer.all_written():
            self._polled.acks.append(Acks(np.concatenate(self._held), None, None, None, now))
            self._held.clear()

    def explain_missing_acks(self) -> str:
        return "" if self.peer.all_written() else "a reader takes nothing, and what was sent waits for it"

    def _refuse(self, tokens: Int64s, error: PublishError, now: float) -> None:
        self._polled.refusals.append(Refusals(tokens, error, now))

    def flush(self) -> None:
        """Whether all was written is looked at in any case."""

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        until = time.monotonic() + timeout
        while not self._polled:
            now = time.monotonic()
            left = max(0.0, until - now)
            if self._blocked or self._held:
                left = min(left, _RETRY if self._blocked else max(0.0, self._next_look - now))
            self._take(self.peer.poll(left))
            self._acknowledge_written(time.monotonic())
            if self._blocked or time.monotonic() >= until:
                break
        polled, self._polled = self._polled, PollResult()
        return polled

    def _take(self, came: PeerInput) -> None:
        if self._requests is not None and came.frames:
            self._requests.take(came.frames)

    def requests(self) -> PeerRequests:
        if self._requests is None:
            self._requests = PeerRequests(self.peer, self._settings.wait_for_subscribers)
        return self._requests

    def close(self) -> None:
        """Ends in order, once everything is written."""
        if not self.peer.close():
            linger = self.peer.settings.linger
            logger.error("%r: not everything was written within %g s: a reader takes nothing", self, linger)


class _KnownTopics:
    """Whether somebody wants a topic.

    :ivar head: first bytes of its frames
    """

    def __init__(self, peer: OpenMamaPeer) -> None:
        self._peer = peer
        self.head = lru_cache(_KNOWN_TOPICS)(peer.settings.framing.publish_head)
        self._wanted: dict[str, bool] = {}
        self._version = -1

    def wanted(self, topic: str) -> bool:
        if self._peer.readers.version != self._version or len(self._wanted) > _KNOWN_TOPICS:
            self._wanted.clear()
            self._version = self._peer.readers.version
        found = self._wanted.get(topic)
        if found is None:
            found = self._wanted[topic] = self._peer.wanted(topic)
        return found


class _Numbers:
    """Numbers of the messages of each topic, behind the header of the payload: there they count before any others."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._sender = secrets.randbits(63) | 1

    def frames(self, heads: list[bytes], payloads: list[bytes], names: list[str], codes: list[int]) -> list[bytes]:
        found, last = [], {code: self._last.get(names[code], 0) for code in set(codes)}
        for code, payload in zip(codes, payloads, strict=True):
            last[code] = next_number(last[code])
            found.append(heads[code] + self._stamped(last[code], payload))
        return found

    def used(self, names: list[str], codes: Int64s) -> None:
        for code, times in zip(*np.unique(codes, return_counts=True), strict=True):
            self._last[names[code]] = next_number(self._last.get(names[code], 0), int(times))

    def _stamped(self, number: int, payload: bytes) -> bytes:
        stamps = (("MdSeqNum", FieldType.U32, number), ("MamaSenderId", FieldType.U64, self._sender))
        return encode(MamaMsg([reserved_field(*stamp) for stamp in stamps])) + payload[len(HEADER) :]


def _used_topics(topics: pa.DictionaryArray) -> tuple[Int64s, list[str]]:
    """The topics that occur, and each message's place among them: a dictionary may hold those of a whole partition."""
    used, codes = np.unique(np.asarray(topics.indices), return_inverse=True)
    names: list[str] = topics.dictionary.take(pa.array(used)).to_pylist()
    return codes.astype(np.int64), names

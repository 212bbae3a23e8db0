"""Interprets refusals of changes of keys that expected another revision.

A stream without replicas checks the expected revision before the id, so it refuses the repetition of a stored message.
A replicated stream does not name the present revision while it decides another change of the key. So the leader is
asked.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import Acks, Refusals
from mama_spark.contracts.errors import ExpectationFailed, MamaError, NotReady, OutcomeUnknown, PublishError
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch

from ..jetstream.answers import NO_MESSAGE, ApiError, ApiForbidden
from ..jetstream.client import AT_ONCE, JetStream, message_of
from ..protocol import key_value as kv
from ..protocol.direct_get import StoredMessage
from ..protocol.headers import EXPECTED_LAST, MARKER_REASON
from .ack_queue import AckQueue

_TOLD = re.compile(r"\d+$")  #: the present revision, where the server names it
_NOTHING = StoredMessage(0, "", "")


class _Change(NamedTuple):
    """A refused send, the revision that it expected, and the server's refusal."""

    token: int
    subject: str
    id: str | None
    expected: int
    refusal: PublishError


class Conflicts:
    """Refused changes of one bridge, on the thread that drives the connection."""

    def __init__(self, api: JetStream, queue: AckQueue, stream_for: Callable[[str], str]) -> None:
        self._api, self._queue, self._stream_for = api, queue, stream_for
        self._refused: deque[_Change] = deque()
        self._removed: dict[str, int] = {}  # by missing key: revision of its marker

    def __bool__(self) -> bool:
        return bool(self._refused)

    def expecting(self, part: MessageBatch) -> MessageBatch:
        """Messages to send: a key that must not exist expects the revision of its marker."""
        topics = part.topics.to_pylist() if self._removed else []
        if part.headers is not None and not self._removed.keys().isdisjoint(topics):
            maps = part.headers.to_pylist()
            for topic, entries in zip(topics, maps, strict=True):
                if (EXPECTED_LAST, ["0"]) in (entries or ()) and topic in self._removed:
                    entries[entries.index((EXPECTED_LAST, ["0"]))] = EXPECTED_LAST, [str(self._removed[topic])]
            part = replace(part, headers=pa.array(maps, HEADERS_TYPE))
        return part

    def takes(self, token: int, message: MessageBatch | None, refusal: PublishError) -> bool:
        """Whether :meth:`resolve` will interpret this refusal; ``message``: None = forgotten."""
        if message is None or message.headers is None or not isinstance(refusal, ExpectationFailed):
            return False
        (subject,), (entries,) = message.topics.to_pylist(), message.headers.to_pylist()
        expected = dict(entries or ()).get(EXPECTED_LAST)
        if expected is None or not self._stream_for(subject):
            return False
        own = None if message.ids is None else message.ids[0].as_py()
        self._refused.append(_Change(token, subject, own, int(expected[0]), refusal))
        return True

    def resolve(self) -> None:
        """Ask for the last message of some refused keys, and for the one after the expected revision. A change that was
        stored is the latter, as long as the bucket keeps it."""
        some = [self._refused.popleft() for _ in range(min(AT_ONCE // 2, len(self._refused)))]
        calls: list[tuple[str, dict[str, Any] | None]] = []
        for c in some:
            call, stored = f"STREAM.MSG.GET.{self._stream_for(c.subject)}", c.subject[c.subject.index("$KV.") :]
            calls += [(call, {"last_by_subj": stored}), (call, {"seq": c.expected + 1, "next_by_subj": stored})]
        answers = self._api.request_all(calls)
        for change, last, following in zip(some, answers[::2], answers[1::2], strict=True):
            self._report(change, last, following)

    def _report(self, change: _Change, *answers: dict[str, Any] | MamaError) -> None:
        token, now, found = np.array([change.token]), time.monotonic(), list[StoredMessage]()
        for answer in answers:
            if isinstance(answer, dict):
                found.append(message_of(answer))
            elif isinstance(answer, ApiError) and answer.code == NO_MESSAGE:
                found.append(_NOTHING)
            else:
                kind = ExpectationFailed if isinstance(answer, ApiForbidden) else OutcomeUnknown
                text = f"{change.refusal.info}; perhaps by this row: {answer}"
                self._queue.refusals(Refusals(token, kind(text, change.refusal.code), now))
                return
        own = next((m for m in found if change.id is not None and m.headers.get(MSG_ID) == change.id), None)
        if own is not None:
            stream = self._stream_for(change.subject)
            self._queue.acks(Acks(token, np.array([own.sequence]), np.array([True]), stream, now))
        else:
            self._queue.refusals(Refusals(token, self._conflict(change, *found), now))

    def _conflict(self, change: _Change, last: StoredMessage, following: StoredMessage) -> PublishError:
        """The refusal to report. ``last``: last message of the key; ``following``: first one above the expected
        revision."""
        none, told = change.expected in (0, self._removed.get(change.subject)), _TOLD.search(change.refusal.info)
        revision = int(told[0]) if told else last.sequence  # which may be later
        there = f"the key was at revision {revision}" if revision else "the key had no revision"
        wanted = "it was not to exist" if none else f"{change.expected} was expected"
        kind: type[PublishError] = ExpectationFailed
        needed = revision if told else change.expected  # another leader, which is behind, may have answered
        if last.sequence < needed or following.sequence <= change.expected < last.sequence:
            kind = OutcomeUnknown
        elif last.sequence == change.expected:  # the change before it was refused, too
            kind = NotReady
        elif none and (last.headers.get(kv.OPERATION) in (kv.DELETE, kv.PURGE) or MARKER_REASON in last.headers):
            kind, self._removed[change.subject] = NotReady, last.sequence
        return kind(f"{there}, and {wanted}", change.refusal.code)

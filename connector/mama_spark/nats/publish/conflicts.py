"""What it means that the server refuses a change of a key because another revision is there.

A stream without replicas looks at the expected revision before it looks for the id: it refuses the repetition of a
message that it has stored. A replicated one does not say which revision is there while another change of the key is
being decided. So the leader is asked for the last message of the key.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import Acks, Refusals
from mama_spark.contracts.errors import ExpectationFailed, NotReady, OutcomeUnknown, PublishError
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch

from ..jetstream.answers import NO_MESSAGE, ApiError, ApiForbidden
from ..jetstream.client import AT_ONCE, JetStream, message_of
from ..protocol import key_value as kv
from ..protocol.direct_get import StoredMessage
from ..protocol.headers import EXPECTED_LAST
from .ack_queue import AckQueue

_REMEMBERED = 128 * 1024  #: sends whose expectations are kept
_NOTHING = StoredMessage(0, "", "")


class _Change(NamedTuple):
    """One send. ``error``: the server's; ``expected``: the revision."""

    token: int
    subject: str
    id: str | None
    expected: int
    error: PublishError


class Conflicts:
    """Of the messages of one bridge, on the thread that drives the connection.

    :param stream_for: name of the stream that takes a subject; empty: not known
    """

    def __init__(self, api: JetStream, queue: AckQueue, stream_for: Callable[[str], str]) -> None:
        self._api, self._queue, self._stream_for = api, queue, stream_for
        self._sent: deque[tuple[int, MessageBatch]] = deque()
        self._refused: deque[_Change] = deque()
        self._removed: dict[str, int] = {}  # keys that do not exist: revision of what says so

    def __bool__(self) -> bool:
        """Whether there is something to :meth:`resolve`."""
        return bool(self._refused)

    def expecting(self, part: MessageBatch, first_token: int) -> MessageBatch:
        """What is to be sent of these messages: that a key does not exist is expected by the revision of its marker."""
        headers = part.headers
        if headers is None:
            return part
        topics = part.topics.to_pylist() if self._removed else []
        if not self._removed.keys().isdisjoint(topics):
            maps = headers.to_pylist()
            for topic, entries in zip(topics, maps, strict=True):
                for at, (name, values) in enumerate(entries or ()):
                    if name == EXPECTED_LAST and values == ["0"] and topic in self._removed:
                        entries[at] = (name, [str(self._removed[topic])])
            part = replace(part, headers=pa.array(maps, HEADERS_TYPE))
        while len(self._sent) > 1 and self._sent[1][0] < first_token - _REMEMBERED:
            self._sent.popleft()
        self._sent.append((first_token, replace(part, payloads=part.topics.indices)))  # payloads are large
        return part

    def takes(self, token: int, error: PublishError) -> bool:
        """Whether this refusal is to be looked into, by :meth:`resolve`."""
        if not isinstance(error, ExpectationFailed):
            return False
        part = next(((first, part) for first, part in reversed(self._sent) if first <= token), None)
        if part is None or token - part[0] >= len(part[1]):
            return False
        message = part[1].slice(token - part[0], 1)
        assert message.headers is not None
        expected = dict(message.headers.to_pylist()[0] or ()).get(EXPECTED_LAST)
        subject = message.topics.to_pylist()[0]
        if expected is None or not self._stream_for(subject):
            return False
        own = None if message.ids is None else message.ids[0].as_py()
        self._refused.append(_Change(token, subject, own, int(expected[0]), error))
        return True

    def resolve(self) -> None:
        """Ask about some of the refused changes, and report what became of them."""
        some = [self._refused.popleft() for _ in range(min(AT_ONCE, len(self._refused)))]
        later = []
        for change, last in zip(some, self._look(some, last=True), strict=True):
            if isinstance(last, PublishError):
                self._refuse(change, last)
            elif self._is_stored_as(change, last):
                continue
            elif last.sequence == change.expected:  # whoever was before it was refused, too
                self._refuse(change, NotReady(change.error.info, change.error.code))
            elif self._expects_none(change) and _says_removed(last):
                self._refuse(change, NotReady(f"the key was removed at revision {last.sequence}", change.error.code))
                self._removed[change.subject] = last.sequence
            else:
                later.append((change, last))
        looked = self._look([change for change, _ in later], last=False)
        for (change, last), following in zip(later, looked, strict=True):
            if isinstance(following, PublishError):
                self._refuse(change, following)
            elif not self._is_stored_as(change, following):
                there = f"the key is at revision {last.sequence}" if last.sequence else "the key has no revision"
                wanted = "it was not to exist" if self._expects_none(change) else f"{change.expected} was expected"
                self._refuse(change, ExpectationFailed(f"{there}, and {wanted}", change.error.code))

    def _expects_none(self, change: _Change) -> bool:
        """Whether the key was expected not to exist."""
        return change.expected in (0, self._removed.get(change.subject))

    def _look(self, changes: list[_Change], *, last: bool) -> list[StoredMessage | PublishError]:
        """The last message of each key, or the one that followed the expected one: if a change was stored, it is that,
        as long as the bucket keeps it."""
        calls = []
        for c in changes:
            stored = c.subject[c.subject.index("$KV.") :]  # behind what leads to another domain
            which = {"last_by_subj": stored} if last else {"seq": c.expected + 1, "next_by_subj": stored}
            calls.append((f"STREAM.MSG.GET.{self._stream_for(c.subject)}", which))
        found: list[StoredMessage | PublishError] = []
        for change, answer in zip(changes, self._api.request_all(calls), strict=True):
            if isinstance(answer, dict):
                found.append(message_of(answer))
            elif isinstance(answer, ApiError) and answer.code == NO_MESSAGE:
                found.append(_NOTHING)
            elif isinstance(answer, ApiForbidden):
                text = f"{change.error.info}; perhaps by this row: {answer}"
                found.append(ExpectationFailed(text, change.error.code))
            else:
                found.append(OutcomeUnknown(f"{change.error.info}; perhaps by this row: {answer}"))
        return found

    def _is_stored_as(self, change: _Change, message: StoredMessage) -> bool:
        """Whether it is that message, which is then acknowledged."""
        if change.id is None or message.headers.get(MSG_ID) != change.id:
            return False
        tokens, duplicate = np.array([change.token]), np.array([True])
        stream = self._stream_for(change.subject)
        self._queue.acks(Acks(tokens, np.array([message.sequence]), duplicate, stream, time.monotonic()))
        return True

    def _refuse(self, change: _Change, error: PublishError) -> None:
        self._queue.refusals(Refusals(np.array([change.token]), error, time.monotonic()))


def _says_removed(message: StoredMessage) -> bool:
    headers = message.headers
    return headers.get(kv.OPERATION) in (kv.DELETE, kv.PURGE) or kv.MARKER_REASON in headers

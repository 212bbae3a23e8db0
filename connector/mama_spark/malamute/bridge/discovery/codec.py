"""The discovery messages on a Malamute broker: their subjects and contents, and the events they stand for. Pure.

Any bytes decode to an event or to None. All messages are stored in the broker's own stream
(:mod:`mama_spark.malamute.broker.session.broker_events`). A source has two subjects with a time to live
(:mod:`mama_spark.malamute.protocol.ttl`), which are renewed without being stored:

* ``<topic>.rec.<id>.<name>``: the source record; the broker's marker for it means OFFLINE;
* ``<topic>.warn.<id>.<name>``: empty, with half the time to live; its marker means SUSPECT.

``<topic>.event.<id>.<name>`` are events of the source's publishers, ``<topic>.image.<token>`` images that were saved
for one reader. A source without an id has ``-`` in its place; the name comes last and may have any characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery.source_expiry import state_by_marker, state_by_markers, suspect_after
from mama_spark.malamute.protocol.commands import MAX_STRING, BadFrame, StreamDeliver, decode
from mama_spark.malamute.protocol.extensions import Extension, read
from mama_spark.malamute.protocol.ttl import EXPIRED, MARKER, RENEWAL, TTL
from mama_spark.options import TransportOptions

EVENTS = "_MAMA_EVENTS"  #: the broker's own stream, unless its configuration has another name
REC, WARN, EVENT, IMAGE = "rec", "warn", "event", "image"
WITHDRAWN = b"Mama-Withdrawn"  #: of ``rec`` and ``warn``: the source was withdrawn

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_READER_EVENTS = {"SUBSCRIBED": DiscoveryEventKind.SUBSCRIBED, "UNSUBSCRIBED": DiscoveryEventKind.UNSUBSCRIBED}


class StoredRecord(NamedTuple):
    """One message of the stream; ``time`` in microseconds since the epoch, by the broker's clock."""

    sequence: int
    time: int
    subject: str
    content: bytes
    headers: dict[bytes, bytes]

    @property
    def has_ttl(self) -> bool:
        return self.ttl > 0

    @property
    def ttl(self) -> float:
        """Seconds; 0 = no time to live."""
        value = self.headers.get(TTL, b"0")
        return int(value) / 1000 if value.isdigit() and len(value) < 20 else 0.0

    @property
    def expired(self) -> bool:
        """Whether it is the broker's marker: the message before it was not renewed."""
        return self.headers.get(MARKER) == EXPIRED


def stored(frames: Sequence[bytes]) -> StoredRecord | None:
    """A message that a fetch returned; None for what is no message of a stored stream."""
    try:
        command = decode(frames)
    except BadFrame:
        return None
    if not isinstance(command, StreamDeliver):
        return None
    extension = read(command.trailing)
    if extension.sequence is None or extension.time is None:
        return None
    subject = command.subject.decode("utf-8", "backslashreplace")
    return StoredRecord(extension.sequence, extension.time, subject, b"".join(command.content), dict(extension.headers))


class DiscoveryMessage(NamedTuple):
    """A message to be stored (or a renewal, which is not)."""

    subject: str
    content: bytes = b""
    extension: Extension = Extension()


def id_of(subject: str, before: int, *parts: bytes) -> bytes:
    """The id of a message that replaces sequence ``before``: the same from all processes, so that it is stored once."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (subject.encode(), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return b"%s-%d" % (digest.hexdigest().encode(), before)


@dataclass(frozen=True, slots=True)
class DiscoveryCodec:
    """Encodes and decodes the messages below one discovery topic, with which the subjects begin. ``events`` is the
    broker's own stream, ``sources`` the origin of the records of an image."""

    topic: str = TransportOptions.discovery_topic
    events: str = EVENTS
    sources: str = TransportOptions.sources_stream

    def __post_init__(self) -> None:
        if not self.topic.startswith("_"):
            raise ConfigError(f"on Malamute, discoveryTopic must begin with _, got {self.topic!r}")

    def subject(self, part: str, source: SourceKey) -> str:
        """Subject of the source's messages of one kind: :data:`REC`, :data:`WARN` or :data:`EVENT`.

        :raises ConfigError: the source's name is too long, contains NUL, or cannot be encoded as UTF-8
        """
        subject = f"{self.topic}.{part}.{'-' if source.id is None else source.id}.{source.name}"
        try:
            subject_bytes = subject.encode()
        except UnicodeEncodeError as e:
            raise ConfigError(f"the name of a source is no text: {e}") from None
        if len(subject_bytes) > MAX_STRING or "\0" in subject:
            most = MAX_STRING - len(subject_bytes) + len(source.name.encode())
            raise ConfigError(f"the name of a source has at most {most} bytes here, and no NUL: {source.name[:60]!r}")
        return subject

    def image_subject(self, token: str) -> str:
        return f"{self.topic}.{IMAGE}.{token}"

    def parse(self, subject: str) -> tuple[str, SourceKey] | None:
        """Part and source; None if it is no subject of :meth:`subject`."""
        rest = subject.removeprefix(f"{self.topic}.")
        part, _, rest = rest.partition(".") if rest != subject else ("", "", "")
        number, dot, name = rest.partition(".")
        if part not in (REC, WARN, EVENT) or not dot:
            return None
        if number == "-":
            return part, SourceKey(name, None)
        if _NUMBER.fullmatch(number) is None or int(number) >= 2**64:
            return None
        return part, SourceKey(name, int(number))

    def record(self, source: SourceKey, record: bytes, ttl: float, before: int) -> DiscoveryMessage:
        """A source record that replaces sequence ``before`` of its subject (0 = there is none)."""
        return self._with_ttl(REC, source, record, ttl, before)

    def warn(self, source: SourceKey, ttl: float, before: int) -> DiscoveryMessage:
        return self._with_ttl(WARN, source, b"", suspect_after(ttl), before)

    def _with_ttl(self, part: str, source: SourceKey, content: bytes, ttl: float, before: int) -> DiscoveryMessage:
        subject, ms = self.subject(part, source), b"%d" % max(1, round(ttl * 1000))
        return DiscoveryMessage(
            subject, content, Extension(message_id=id_of(subject, before, content, ms), headers=((TTL, ms),))
        )

    def withdrawal(self, part: str, source: SourceKey, content: bytes, before: int) -> DiscoveryMessage:
        subject = self.subject(part, source)
        headers = ((TTL, b"0"), (WITHDRAWN, b"1"))
        return DiscoveryMessage(
            subject, content, Extension(message_id=id_of(subject, before, content), headers=headers)
        )

    def renewal(self, part: str, source: SourceKey) -> DiscoveryMessage:
        return DiscoveryMessage(self.subject(part, source), b"", Extension(headers=((RENEWAL, b"1"),)))

    def event_of(self, one: StoredRecord) -> DiscoveryEvent | None:
        """The event that a message is; None for what is no event of discovery."""
        if not one.subject.startswith(f"{self.topic}."):
            return self._reader_event(one)
        found = self.parse(one.subject)
        if found is None:
            return None
        part, source = found
        if part == EVENT:
            return DiscoveryEvent(DiscoveryEventKind.EVENT, one.time, self.events, one.sequence, source, one.content)
        if one.expired:
            return DiscoveryEvent(state_by_marker(half=part == WARN), one.time, self.events, one.sequence, source)
        if part == REC:
            return DiscoveryEvent(DiscoveryEventKind.RECORD, one.time, self.events, one.sequence, source, one.content)
        return None

    def _reader_event(self, one: StoredRecord) -> DiscoveryEvent | None:
        kind, client, stream, detail = (
            one.headers.get(b"Mama-" + name, b"").decode("utf-8", "backslashreplace")
            for name in (b"Event", b"Client", b"Stream", b"Detail")
        )
        if not kind:
            return None  # of any client
        if kind in _READER_EVENTS:
            who = f"client {client}" if client else "a client without address"
            info = f"{who} reads {detail}" if detail else who
            return DiscoveryEvent(
                _READER_EVENTS[kind], one.time, self.events, one.sequence, payload=one.content, topic=stream, info=info
            )
        return DiscoveryEvent(DiscoveryEventKind.EVENT, one.time, self.events, one.sequence, payload=one.content)

    def image(self, current: Iterable[StoredRecord]) -> list[DiscoveryEvent]:
        """The sources that are announced in the current messages of all subjects, in the order of their records."""
        found: dict[SourceKey, dict[str, StoredRecord]] = {}
        for one in current:
            parsed = self.parse(one.subject)
            if parsed is not None:
                part, source = parsed
                found.setdefault(source, {})[part] = one
        events = []
        for source, parts in sorted(found.items(), key=lambda item: item[1][REC].sequence if REC in item[1] else 0):
            rec, warn = parts.get(REC), parts.get(WARN)
            if rec is None or not rec.has_ttl:
                continue
            events.append(
                DiscoveryEvent(DiscoveryEventKind.RECORD, rec.time, self.sources, rec.sequence, source, rec.content)
            )
            warned = warn.sequence if warn is not None and warn.expired else None
            state = state_by_markers(rec.sequence, warned, None)
            if warn is not None and state is not None:
                events.append(DiscoveryEvent(state, warn.time, self.sources, warn.sequence, source))
        return events

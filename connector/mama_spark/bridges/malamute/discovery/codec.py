"""What discovery says on a Malamute broker, and what that means. Pure: any bytes give a change or nothing.

Everything stands in the broker's own stream (:mod:`mama_spark.services.malamute_broker.session.broker_events`), where
it is stored. Two subjects a source, with a time to live each (:mod:`mama_spark.malamute.protocol.ttl`), renewed without
being stored:

* ``<topic>.rec.<id>.<name>``: what the source says of itself. When it is not renewed, the broker's marker says that the
  source is OFFLINE;
* ``<topic>.warn.<id>.<name>``: empty, with half the time; its marker says SUSPECT.

``<topic>.event.<id>.<name>`` are events of the source's publishers, ``<topic>.image.<token>`` images that were written
down for one reader. A source without an id has ``-`` in its place; the name comes last and is taken as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mama_spark.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.errors import ConfigError, MamaError
from mama_spark.malamute.protocol.commands import BadFrame, StreamDeliver, decode
from mama_spark.malamute.protocol.extensions import Extension, read
from mama_spark.malamute.protocol.ttl import EXPIRED, MARKER, RENEWAL, TTL
from mama_spark.source_expiry import state_by_markers, suspect_after

EVENTS = "_MAMA_EVENTS"  #: the broker's own stream, unless its configuration has another name
REC, WARN, EVENT, IMAGE = "rec", "warn", "event", "image"
WITHDRAWN = b"Mama-Withdrawn"  #: of ``rec`` and ``warn``: the source ended in order
MOST_SUBJECT = 255  #: octets

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_READERS = {"SUBSCRIBED": DiscoveryEventKind.SUBSCRIBED, "UNSUBSCRIBED": DiscoveryEventKind.UNSUBSCRIBED}


class StoredRecord(NamedTuple):
    """One message of the stream.

    :ivar time: microseconds since the epoch, by the broker's clock
    """

    sequence: int
    time: int
    subject: str
    content: bytes
    headers: dict[bytes, bytes]

    @property
    def runs(self) -> bool:
        """It has a time to live that can end."""
        return self.ttl > 0

    @property
    def ttl(self) -> float:
        """Seconds; 0 = for ever."""
        value = self.headers.get(TTL, b"0")
        return int(value) / 1000 if value.isdigit() else 0.0

    @property
    def expired(self) -> bool:
        """It is the broker's word that nobody renewed what was here."""
        return self.headers.get(MARKER) == EXPIRED


def stored(frames: Sequence[bytes]) -> StoredRecord | None:
    """What a fetch brought; None for what is no message of a stored stream."""
    try:
        command = decode(frames)
    except BadFrame:
        return None
    if not isinstance(command, StreamDeliver):
        return None
    said = read(command.trailing)
    if said.sequence is None or said.time is None:
        return None
    subject = command.subject.decode("utf-8", "backslashreplace")
    return StoredRecord(said.sequence, said.time, subject, b"".join(command.content), dict(said.headers))


class DiscoveryMessage(NamedTuple):
    """One to be stored (or a renewal, which is not)."""

    subject: str
    content: bytes = b""
    extension: Extension = Extension()


def id_of(subject: str, before: int, *parts: bytes) -> bytes:
    """Of a message that replaces number ``before`` of its subject: the same from whoever wants to say the same there,
    so that it is stored once."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (subject.encode(), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return b"%s-%d" % (digest.hexdigest().encode(), before)


@dataclass(frozen=True, slots=True)
class DiscoveryCodec:
    """The names of one place of discovery.

    :param topic: that the subjects begin with
    :param events: the broker's own stream
    :param sources: what an image is said to come from
    """

    topic: str = "_MAMA_SOURCE_DISCOVERY"
    events: str = EVENTS
    sources: str = "MAMA_SOURCES"

    def __post_init__(self) -> None:
        if not self.topic.startswith("_"):
            raise ConfigError(f"on Malamute, discoveryTopic must begin with _, got {self.topic!r}")

    def subject(self, part: str, source: SourceKey) -> str:
        """:raises ConfigError: the name is too long, or no text"""
        subject = f"{self.topic}.{part}.{'-' if source.id is None else source.id}.{source.name}"
        try:
            octets = subject.encode()
        except UnicodeEncodeError as e:
            raise ConfigError(f"the name of a source is no text: {e}") from None
        if len(octets) > MOST_SUBJECT or "\0" in subject:
            most = MOST_SUBJECT - len(octets) + len(source.name.encode())
            raise ConfigError(f"the name of a source has at most {most} octets here, and no NUL: {source.name[:60]!r}")
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

    # --- what is written -------------------------------------------------------------------------------------------

    def record(self, source: SourceKey, record: bytes, ttl: float, before: int) -> DiscoveryMessage:
        """What the source says of itself, in place of number ``before`` there (0 = nothing)."""
        return self._running(REC, source, record, ttl, before)

    def warn(self, source: SourceKey, ttl: float, before: int) -> DiscoveryMessage:
        return self._running(WARN, source, b"", suspect_after(ttl), before)

    def _running(self, part: str, source: SourceKey, content: bytes, ttl: float, before: int) -> DiscoveryMessage:
        subject, ms = self.subject(part, source), b"%d" % max(1, round(ttl * 1000))
        return DiscoveryMessage(
            subject, content, Extension(message_id=id_of(subject, before, content, ms), headers=((TTL, ms),))
        )

    def ended(self, part: str, source: SourceKey, content: bytes, before: int) -> DiscoveryMessage:
        """Of ``rec`` or ``warn``: the source ended in order."""
        subject = self.subject(part, source)
        headers = ((TTL, b"0"), (WITHDRAWN, b"1"))
        return DiscoveryMessage(
            subject, content, Extension(message_id=id_of(subject, before, content), headers=headers)
        )

    def renewal(self, part: str, source: SourceKey) -> DiscoveryMessage:
        return DiscoveryMessage(self.subject(part, source), b"", Extension(headers=((RENEWAL, b"1"),)))

    # --- what is read ----------------------------------------------------------------------------------------------

    def change(self, one: StoredRecord) -> DiscoveryEvent | None:
        """What a message tells; None for what is no change."""
        if not one.subject.startswith(f"{self.topic}."):
            return self._of_broker(one)
        found = self.parse(one.subject)
        if found is None:
            return None
        part, source = found
        if part == EVENT:
            return DiscoveryEvent(DiscoveryEventKind.EVENT, one.time, self.events, one.sequence, source, one.content)
        if one.expired:
            kind = DiscoveryEventKind.OFFLINE if part == REC else DiscoveryEventKind.SUSPECT
            return DiscoveryEvent(kind, one.time, self.events, one.sequence, source)
        if part == REC:
            return DiscoveryEvent(DiscoveryEventKind.RECORD, one.time, self.events, one.sequence, source, one.content)
        return None

    def _of_broker(self, one: StoredRecord) -> DiscoveryEvent | None:
        kind, client, stream, detail = (
            one.headers.get(b"Mama-" + name, b"").decode("utf-8", "backslashreplace")
            for name in (b"Event", b"Client", b"Stream", b"Detail")
        )
        if not kind:
            return None  # of a client that writes what it likes
        if kind in _READERS:
            who = f"client {client}" if client else "a client without address"
            info = f"{who} reads {detail}" if detail else who
            return DiscoveryEvent(
                _READERS[kind], one.time, self.events, one.sequence, payload=one.content, topic=stream, info=info
            )
        return DiscoveryEvent(DiscoveryEventKind.EVENT, one.time, self.events, one.sequence, payload=one.content)

    def image(self, standing: Iterable[StoredRecord]) -> list[DiscoveryEvent]:
        """The sources there are, in the order in which they last said something."""
        found: dict[SourceKey, dict[str, StoredRecord]] = {}
        for one in standing:
            place = self.parse(one.subject)
            if place is not None:
                found.setdefault(place[1], {})[place[0]] = one
        changes = []
        for source, parts in sorted(found.items(), key=lambda item: item[1][REC].sequence if REC in item[1] else 0):
            rec, warn = parts.get(REC), parts.get(WARN)
            if rec is None or not rec.runs:
                continue
            changes.append(
                DiscoveryEvent(DiscoveryEventKind.RECORD, rec.time, self.sources, rec.sequence, source, rec.content)
            )
            warned = warn.sequence if warn is not None and warn.expired else None
            if warn is not None and state_by_markers(rec.sequence, warned, None) is not None:
                changes.append(
                    DiscoveryEvent(DiscoveryEventKind.SUSPECT, warn.time, self.sources, warn.sequence, source)
                )
        return changes


class SourceWithdrawn(MamaError):
    """Somebody said that the source has ended."""

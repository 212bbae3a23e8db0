"""Subjects and streams of discovery on NATS. Pure.

Each source has three subjects in the stream ``MAMA_SOURCES``, which keeps the last message of each:

* ``<topic>.source.<name>.<id>.rec``: the source's record (a source message), written when it changes;
* ``<topic>.source.<name>.<id>.warn`` and ``.live``: empty, renewed with ``Nats-TTL`` of half of and all of the
  source's TTL (NATS ADR-43). When one is not renewed, the server deletes it and leaves a marker
  (``Nats-Marker-Reason: MaxAge``): the source is SUSPECT, or OFFLINE.

``MAMA_EVENTS`` sources all of that (``Nats-Stream-Source`` has the sequence in ``MAMA_SOURCES``), keeps records and
markers, lets renewals expire by their TTL, and takes events of publishers and topics below ``<topic>.event``, marks of
readers at ``<topic>.mark``, and images stored for one reader below ``MAMA_EVENTS.image``. ``MAMA_ADVISORIES`` keeps the
server's advisories. Tested with nats-server 2.15.1: markers survive sourcing, in order; a purge of subjects
leaves no marker; a stream that was deleted and created again is sourced from the sequence reached before, so it must
begin after that (``first_seq``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.errors import MamaError
from mama_spark.options import TransportOptions
from mama_spark.options.transport import CHANGES_KEPT

REC, WARN, LIVE = "rec", "warn", "live"
ADVISORIES = "$JS.EVENT.ADVISORY.>"
#: Maximum bytes of advisories: every call of the JetStream API by any client makes one.
ADVISORY_BYTES = 256 * 1024 * 1024
WINDOW = 120.0  #: duplicate window of events, seconds

SOURCE_TTL = "Mama-Source-Ttl"  #: of ``rec``: seconds without a renewal after which the source is OFFLINE
WITHDRAWN = "Mama-Withdrawn"  #: of ``rec``: the source was withdrawn
REPLACED_MARKER = "Mama-Given-Up"  #: of ``warn`` and ``live``: the sequence of the marker that this renewal replaced
RENEWAL = "Mama-Renewal"  #: of ``rec``: rewritten so that it does not expire; nothing has changed

_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


class BadSubject(MamaError):
    """A subject below the discovery topic that is not of this layout."""


def as_token(text: str) -> str:
    """``text`` as one token of a subject: bytes of other characters than letters, digits, ``_`` and ``-`` become
    ``=XX``; the empty text is ``=``."""
    return _PLAIN.sub(lambda m: "".join(f"={b:02X}" for b in m[0].encode()), text) or "="


@lru_cache(4096)
def from_token(token: str) -> str:
    """The text of a token. BadSubject: not made by :func:`as_token`."""
    if token == "=":
        return ""
    if re.fullmatch(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+", token) is None:
        raise BadSubject(f"token {token[:60]!r}")
    try:
        text = unquote_to_bytes(token.replace("=", "%")).decode()
    except UnicodeDecodeError:
        raise BadSubject(f"token {token[:60]!r}") from None
    if as_token(text) != token:  # two spellings of one name would be two subjects of one source
        raise BadSubject(f"token {token[:60]!r}")
    return text


@dataclass(frozen=True, slots=True)
class DiscoveryLayout:
    """Names of the subjects and streams below one discovery topic.

    :param advisories: None = consumers of others are not reported
    :param kept: seconds that records stay in streams made by us, and that a source is remembered which is not renewed
    """

    topic: str = TransportOptions.discovery_topic
    sources: str = TransportOptions.sources_stream
    events: str = TransportOptions.events_stream
    advisories: str | None = TransportOptions.advisories_stream
    kept: float = CHANGES_KEPT

    def source_subject(self, source: SourceKey, part: str) -> str:
        """Subject of ``rec``, ``warn`` or ``live`` of a source."""
        number = "-" if source.id is None else str(source.id)
        return f"{self.topic}.source.{as_token(source.name)}.{number}.{part}"

    def source_of(self, subject: str) -> tuple[SourceKey, str]:
        """Source and part (``rec``, ``warn``, ``live``) of a subject. BadSubject: not of :meth:`source_subject`."""
        head = f"{self.topic}.source."
        tokens = subject.removeprefix(head).split(".")
        if not subject.startswith(head) or len(tokens) != 3 or tokens[2] not in (REC, WARN, LIVE):
            raise BadSubject(f"subject {subject[:200]!r}")
        return self._key(tokens[0], tokens[1]), tokens[2]

    def source_of_event(self, subject: str) -> SourceKey:
        """The source of an event, from its subject. BadSubject: not of :meth:`event_subject`."""
        tokens = subject.removeprefix(f"{self.topic}.event.").split(".")
        if not subject.startswith(f"{self.topic}.event.") or len(tokens) != 2:
            raise BadSubject(f"subject {subject[:200]!r}")
        return self._key(*tokens)

    @staticmethod
    def _key(name: str, number: str) -> SourceKey:
        if number != "-" and (re.fullmatch(r"0|[1-9][0-9]{0,19}", number) is None or int(number) >= 2**64):
            raise BadSubject(f"source id {number[:60]!r}")
        return SourceKey(from_token(name), None if number == "-" else int(number))

    def event_subject(self, source: SourceKey) -> str:
        return f"{self.topic}.event.{as_token(source.name)}.{'-' if source.id is None else source.id}"

    @property
    def mark_subject(self) -> str:
        """Subject of readers' marks: while one exists, nothing after it was lost."""
        return f"{self.topic}.mark"

    def image_subject(self, reader: str) -> str:
        return f"{self.events}.image.{as_token(reader)}"

    def streams(self) -> list[dict[str, Any]]:
        """Configurations of the streams, in the order of their creation."""
        kept = int(self.kept * 1e9)
        common = {"storage": "file", "num_replicas": 1, "allow_direct": True}
        made: list[dict[str, Any]] = [
            {
                **common,
                "name": self.sources,
                "subjects": [f"{self.topic}.source.>"],
                "max_msgs_per_subject": 1,
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": kept,
            },
            {
                **common,
                "name": self.events,
                "subjects": [f"{self.topic}.event.>", self.mark_subject, f"{self.events}.image.>"],
                "max_age": kept,
                "duplicate_window": min(int(WINDOW * 1e9), kept),  # streams that source others need a value
                "allow_msg_ttl": True,
                "sources": [{"name": self.sources}],
            },
        ]
        if self.advisories is not None:
            limits = {"no_ack": True, "max_age": kept, "max_bytes": ADVISORY_BYTES}
            made.append({**common, **limits, "name": self.advisories, "subjects": [ADVISORIES]})
        return made

    def faults(self, config: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Errors and warnings on an existing stream of :meth:`streams`, from its settings at the server."""
        wanted = next(c for c in self.streams() if c["name"] == config["name"])
        wrong = [
            f"{name} is off" for name in ("allow_direct", "allow_msg_ttl") if wanted.get(name) and not config.get(name)
        ]
        doubtful = []
        if config["name"] == self.sources:
            if not config.get("subject_delete_marker_ttl"):
                wrong.append("subject_delete_marker_ttl is not set: readers would not learn that a source died")
            if config.get("max_msgs_per_subject") != 1:
                wrong.append("max_msgs_per_subject is not 1")
        if config["name"] == self.events:
            if all(s.get("name") != self.sources for s in config.get("sources") or ()):
                wrong.append(f"it does not source {self.sources}")
            if config.get("subject_delete_marker_ttl"):
                wrong.append("subject_delete_marker_ttl is set: vanishing renewals would leave markers")
        if config["name"] == self.events and not config.get("duplicate_window"):
            doubtful.append("duplicate_window is not set: events that are told again are stored again")
        if config["name"] != self.sources and config.get("max_msgs_per_subject", -1) > 0:
            doubtful.append("max_msgs_per_subject deletes unread records without a trace")
        return wrong, doubtful

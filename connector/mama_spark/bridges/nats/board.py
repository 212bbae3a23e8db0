"""Where discovery lives on NATS: subjects and streams. Pure.

Three subjects a source, all in the stream ``MAMA_SOURCES`` that keeps the last message of each:

* ``<topic>.source.<name>.<id>.rec``: what the source says of itself (a source message), written on a change;
* ``<topic>.source.<name>.<id>.warn`` and ``.live``: empty, renewed with ``Nats-TTL`` of half of and all of the
  source's TTL. When one is not renewed the server itself deletes it and leaves a marker
  (``Nats-Marker-Reason: MaxAge``): the source is SUSPECT, or OFFLINE.

``MAMA_EVENTS`` sources all of that (``Nats-Stream-Source`` tells the number in ``MAMA_SOURCES``), keeps changes and
markers, lets renewals vanish by their TTL, and takes events of publishers and topics below ``<topic>.event`` and
images written down for one reader below ``MAMA_EVENTS.image``. ``MAMA_ADVISORIES`` keeps the server's advisories about
consumers. Tried with nats-server 2.15.1: markers survive sourcing, in order; a purge of subjects leaves no marker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from ...bridge import SourceKey
from ...errors import MamaError

REC, WARN, LIVE = "rec", "warn", "live"
ADVISORIES = "$JS.EVENT.ADVISORY.>"
KEPT = 7 * 86400.0  #: seconds that changes, events, markers and advisories stay

_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


class BadSubject(MamaError):
    """A subject below the discovery topic that is none of ours."""


def as_token(text: str) -> str:
    """``text`` as one token of a subject: what is not a letter, digit, ``_`` or ``-`` becomes ``=XX`` per byte of
    UTF-8; the empty text is a single ``=``."""
    return _PLAIN.sub(lambda m: "".join(f"={b:02X}" for b in m[0].encode()), text) or "="


def from_token(token: str) -> str:
    """:raises BadSubject: no token of :func:`as_token`"""
    if token == "=":
        return ""
    if re.fullmatch(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+", token) is None:
        raise BadSubject(f"token {token[:60]!r}")
    try:
        return unquote_to_bytes(token.replace("=", "%")).decode()
    except UnicodeDecodeError:
        raise BadSubject(f"token {token[:60]!r}") from None


@dataclass(frozen=True, slots=True)
class Board:
    """The names of one place of discovery.

    :param topic: the source discovery topic
    """

    topic: str = "_MAMA_SOURCE_DISCOVERY"
    sources: str = "MAMA_SOURCES"
    events: str = "MAMA_EVENTS"
    advisories: str = "MAMA_ADVISORIES"

    def source_subject(self, source: SourceKey, part: str) -> str:
        """Of ``rec``, ``warn`` or ``live`` of a source."""
        number = "-" if source.id is None else str(source.id)
        return f"{self.topic}.source.{as_token(source.name)}.{number}.{part}"

    def source_of(self, subject: str) -> tuple[SourceKey, str]:
        """The source and the part that a subject is about.

        :raises BadSubject: it is none of :meth:`source_subject`
        """
        head = f"{self.topic}.source."
        tokens = subject.removeprefix(head).split(".")
        if not subject.startswith(head) or len(tokens) != 3 or tokens[2] not in (REC, WARN, LIVE):
            raise BadSubject(f"subject {subject[:200]!r}")
        name, number, part = tokens
        if number != "-" and (re.fullmatch(r"[0-9]{1,20}", number) is None or int(number) >= 2**64):
            raise BadSubject(f"source id {number[:60]!r}")
        return SourceKey(from_token(name), None if number == "-" else int(number)), part

    def event_subject(self, source: SourceKey) -> str:
        """Of events of the publishers of a source."""
        return f"{self.topic}.event.{as_token(source.name)}.{'-' if source.id is None else source.id}"

    def image_subject(self, reader: str) -> str:
        """Of the image written down for one reader."""
        return f"{self.events}.image.{as_token(reader)}"

    def streams(self, replicas: int = 1) -> list[dict[str, Any]]:
        """Configurations of the three streams, in the order in which they can be made."""
        kept = int(KEPT * 1e9)
        common = {"storage": "file", "num_replicas": replicas, "allow_direct": True}
        return [
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
                "subjects": [f"{self.topic}.event.>", f"{self.events}.image.>"],
                "max_age": kept,
                "allow_msg_ttl": True,
                "sources": [{"name": self.sources}],
            },
            {**common, "name": self.advisories, "subjects": [ADVISORIES], "no_ack": True, "max_age": kept},
        ]

"""Reads the server's advisories on created and deleted consumers. Pure; no input raises an error.

``CONSUMER.CREATED`` and ``CONSUMER.DELETED`` name a stream and a consumer. The filters of the consumer are in another
record: the audit of the API request that created it. The server sends the two kinds through two queues, each in order,
but not relative to the other. So a consumer and its audit are matched by their server times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind

from ..jetstream.answers import ConsumerInfo
from ..protocol.direct_get import StoredMessage, micros
from ..subjects import NO_READERS, shows_progress

CONSUMERS = "$JS.EVENT.ADVISORY.CONSUMER.>"
CREATED, DELETED = "$JS.EVENT.ADVISORY.CONSUMER.CREATED.", "$JS.EVENT.ADVISORY.CONSUMER.DELETED."
AUDITS = "$JS.EVENT.ADVISORY.API"


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """A consumer was created or deleted ``at`` this time (microseconds since the epoch; 0 = unreadable)."""

    stream: str
    consumer: str
    deleted: bool
    at: int


@dataclass(frozen=True, slots=True)
class AdvisoryReader:
    """A consumer as the audit of its creation describes it.

    :ivar topics: filters; empty = everything in the stream
    :ivar internal: created by the server, or by this package to show the progress of a query: nobody reads through it
    :ivar made: creation of the consumer, microseconds since the epoch; 0 if the time cannot be read
    """

    stream: str
    consumer: str
    made: int
    topics: tuple[str, ...]
    client: dict[str, Any]
    internal: bool


def consumer_event(record: StoredMessage) -> ConsumerEvent | None:
    """The creation or deletion that a record reports; None for other records, and for consumers that are no readers."""
    for head, deleted in ((CREATED, False), (DELETED, True)):
        if record.subject.startswith(head):
            tokens = record.subject.removeprefix(head).split(".")
            if len(tokens) != 2 or tokens[1].startswith(NO_READERS):
                return None
            return ConsumerEvent(tokens[0], tokens[1], deleted, time_of(record))
    return None


def time_of(record: StoredMessage) -> int:
    """Time at which the server created an advisory, microseconds since the epoch; 0 if it has none."""
    try:
        return micros(orjson.loads(record.payload)["timestamp"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0


def reader(record: StoredMessage) -> AdvisoryReader | None:
    """The consumer that was created, from an audit of the JetStream API; None for all other records."""
    if record.subject != AUDITS or b"consumer_create_response" not in record.payload:
        return None
    try:
        audit = orjson.loads(record.payload)
        answer = orjson.loads(audit["response"])
        config, consumer = answer["config"], ConsumerInfo.of(answer)
        client = audit.get("client")
        client = client if isinstance(client, dict) else {}
        return AdvisoryReader(
            str(answer["stream_name"]),
            consumer.name,
            micros(str(answer.get("created"))),
            tuple(map(str, consumer.filters)),
            client,
            bool(config.get("direct") or config.get("sourcing"))
            or client.get("kind") == "JetStream"
            or shows_progress(config),
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # of JSON and of numbers, too
        return None


def find_reader(
    consumer_event: ConsumerEvent, deleted: ConsumerEvent | None, readers: Iterable[AdvisoryReader]
) -> AdvisoryReader | None:
    """The one of ``readers`` that ``consumer_event`` created; None: none. Ignores consumers of its name made before the
    last deletion (``deleted``) or after the advisory."""
    since = 0 if deleted is None else deleted.at
    same = [r for r in readers if (r.stream, r.consumer) == (consumer_event.stream, consumer_event.consumer)]
    return max((r for r in same if since <= r.made <= consumer_event.at), key=lambda r: r.made, default=None)


def events_of(
    record: StoredMessage, one: ConsumerEvent, found: AdvisoryReader | None, origin: str, all_topics: Sequence[str]
) -> list[DiscoveryEvent]:
    """One event per topic.

    :param found: filters of the consumer; None = unknown by now
    :param all_topics: subjects of the stream, for a consumer without filters
    """
    kind = DiscoveryEventKind.UNSUBSCRIBED if one.deleted else DiscoveryEventKind.SUBSCRIBED
    info: dict[str, Any] = {"stream": one.stream, "consumer": one.consumer}
    topics: Sequence[str | None] = [None]
    if found is None:
        info["note"] = "what it filters is not known: the audit of its making is not kept"
    else:
        topics = found.topics or list(all_topics) or [None]
        info["client"] = {k: found.client[k] for k in ("name", "host", "user", "lang", "ver") if k in found.client}
    text = orjson.dumps(info).decode()
    return [DiscoveryEvent(kind, record.at, origin, record.sequence, topic=topic, info=text) for topic in topics]

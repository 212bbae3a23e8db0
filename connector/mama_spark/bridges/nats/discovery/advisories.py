"""Reads the server's advisories on consumers that are created and deleted. Pure; any bytes give an answer, never an
error.

``CONSUMER.CREATED`` and ``CONSUMER.DELETED`` name a stream and a consumer. What the consumer filters is in another
record: the audit of the API request that created it. The server sends the two kinds by two queues: each is in order,
but not relative to the other. So a consumer and its audit are matched by the times that the server writes into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mama_spark.bridge import DiscoveryEvent, DiscoveryEventKind

from ..protocol.direct_get import StoredMessage, micros
from ..subjects import CONSUMER_PREFIX, PROGRESS_METADATA

CONSUMERS = "$JS.EVENT.ADVISORY.CONSUMER.>"
CREATED, DELETED = "$JS.EVENT.ADVISORY.CONSUMER.CREATED.", "$JS.EVENT.ADVISORY.CONSUMER.DELETED."
AUDITS = "$JS.EVENT.ADVISORY.API"
#: Names of consumers that are no readers: those of this package, and those that streams source and mirror with.
_OURS = (CONSUMER_PREFIX, "JS_SRC_", "JS_MIRROR_")


@dataclass(frozen=True, slots=True)
class ConsumerEvent:
    """A consumer was created or deleted.

    :ivar at: when, in microseconds since the epoch; 0 if that cannot be read
    """

    stream: str
    consumer: str
    deleted: bool
    at: int


@dataclass(frozen=True, slots=True)
class AdvisoryReader:
    """A consumer as the audit of its creation describes it.

    :ivar topics: what it filters; empty = everything in the stream
    :ivar internal: made by the server or by this package: it shows the progress of a query, and nobody reads through it
    :ivar made: when the consumer was made, in microseconds since the epoch; 0 if that cannot be read
    """

    stream: str
    consumer: str
    made: int
    topics: tuple[str, ...]
    client: dict[str, Any]
    internal: bool


def consumer_event(record: StoredMessage) -> ConsumerEvent | None:
    """The creation or deletion that a record is about; None for other records and for consumers that are no readers."""
    for head, deleted in ((CREATED, False), (DELETED, True)):
        if record.subject.startswith(head):
            tokens = record.subject.removeprefix(head).split(".")
            if len(tokens) != 2 or tokens[1].startswith(_OURS):
                return None
            return ConsumerEvent(tokens[0], tokens[1], deleted, time_of(record))
    return None


def time_of(record: StoredMessage) -> int:
    """When the server made an advisory, in microseconds since the epoch; 0 if it does not say."""
    try:
        return micros(orjson.loads(record.payload)["timestamp"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0


def reader(record: StoredMessage) -> AdvisoryReader | None:
    """The consumer that an audit of the JetStream API says was created; None for all other records."""
    if record.subject != AUDITS or b"consumer_create_response" not in record.payload:
        return None
    try:
        audit = orjson.loads(record.payload)
        answer = orjson.loads(audit["response"])
        config = answer["config"]
        topics = config.get("filter_subjects") or [t for t in (config.get("filter_subject"),) if t]
        client = audit.get("client")
        client = client if isinstance(client, dict) else {}
        return AdvisoryReader(
            str(answer["stream_name"]),
            str(answer["name"]),
            micros(str(answer.get("created"))),
            tuple(str(t) for t in topics),
            client,
            bool(config.get("direct") or config.get("sourcing"))
            or client.get("kind") == "JetStream"
            or PROGRESS_METADATA.items() <= (config.get("metadata") or {}).items(),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None


def find_reader(
    consumer_event: ConsumerEvent, deleted: ConsumerEvent | None, readers: Iterable[AdvisoryReader]
) -> AdvisoryReader | None:
    """The audit of a consumer that was created; None if it is not among ``readers``.

    :param deleted: the deletion of the last consumer of its name before it. What was created until then is another one,
        and so is what was created after the advisory, however soon: the advisory may be late, or the audit missing
    """
    since = 0 if deleted is None else deleted.at
    same = [r for r in readers if (r.stream, r.consumer) == (consumer_event.stream, consumer_event.consumer)]
    return max((r for r in same if since <= r.made <= consumer_event.at), key=lambda r: r.made, default=None)


def events_of(
    record: StoredMessage, one: ConsumerEvent, found: AdvisoryReader | None, origin: str, all_topics: Sequence[str]
) -> list[DiscoveryEvent]:
    """One event a topic.

    :param found: what the consumer filters, None if that is not known any more
    :param all_topics: subjects of the stream, for a consumer that filters nothing
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

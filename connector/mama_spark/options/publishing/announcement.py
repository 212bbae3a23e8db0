"""Options of ``mamapub``: how a write announces itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..transport import DISCOVERY
from ..values import boolean, duration, duration_or_none, one_of, text


@dataclass(frozen=True, repr=False)
class AnnouncementOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    announce: bool = option(
        "boolean", boolean, False, DISCOVERY, "Announce the write as a source, and its partitions as publishers."
    )
    source_name: str | None = option(
        "text", text, None, DISCOVERY, "Name of the source.", shown="query or application name"
    )
    announce_counts: float | None = option(
        "duration", duration_or_none, None, DISCOVERY,
        "Publish an event `counts` of each publisher that often: messages taken, acknowledged, failed and in flight, "
        "which `mama top` shows.", shown="none",
    )  # fmt: skip
    source_ttl: float = option(
        "duration", duration, 30.0, DISCOVERY,
        "A source that is not heard of for half as long turns SUSPECT, and OFFLINE after all of it. Must exceed the "
        "trigger interval of a stream.", shown="30s",
    )  # fmt: skip
    topic_events: str = option(
        "`topic`, `publisher`, `off`", one_of("topic", "publisher", "off"), "topic", DISCOVERY,
        "Which events of publishers go to the flight log (and to discovery with `announce`): of each topic too, only "
        "of the publishers, or none.",
    )  # fmt: skip

"""Options of ``mamapub``: which topic and stream the rows go to, and how they are packed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..scopes import NATS, Scope
from ..stream_names import StreamRange, stream_range
from ..urls import log_urls
from ..values import boolean, integer, one_of, text, topic_prefix, trace_context

_GROUP = "Messages"


@dataclass(frozen=True, repr=False)
class MessageOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    topic: str | None = option(
        "text", text, None, _GROUP, "One topic for all rows; then no `topic` column is needed.", shown="column `topic`"
    )
    topic_prefix: str | None = option("text", topic_prefix, None, _GROUP, "Put before every topic, joined with a dot.")
    stream: str | None = option(
        "text", text, None, _GROUP,
        "JetStream stream that must take all topics, found from the topics when not given; Malamute stream that is "
        "written to (or at the end of `url`). Malamute: with a column `stream` each row goes to its own, and this one "
        "takes the dead letters.", shown="found from the topics",
    )  # fmt: skip
    log: tuple[str, ...] | None = option(
        "URL", log_urls, None, _GROUP,
        "Tango: the log that takes the records of the source, and that `mama tango-source` serves: "
        "`nats://host:4222/STREAM`, `mlp://host:9999/stream`. Options of the connection are those of the log.",
        shown="", scope=Scope(bridges=("tango",)),
    )  # fmt: skip
    create_stream: bool = option(
        "boolean", boolean, False, _GROUP,
        "Create a missing stream: file storage, duplicate window of twice `retryDeadline`, fast ingest allowed. "
        "(A Malamute broker makes streams when they are first written to; its configuration says which are durable.)",
    )  # fmt: skip
    streams: StreamRange | None = option(
        "names", stream_range, None, _GROUP,
        "Spread the topics over the streams of a set ([how](../how-to/spread-over-streams.md)), `orders-{0..7}`: those "
        "of a topic are in one, in their order. `createStream` makes what is missing. Instead of `stream`.", scope=NATS,
    )  # fmt: skip
    grow_streams: bool = option(
        "boolean", boolean, False, _GROUP,
        "The streams of `streams` may be a smaller set, which becomes this one: topics change streams.", scope=NATS,
    )  # fmt: skip
    ignore_unknown_columns: bool = option(
        "boolean", boolean, False, _GROUP, "Leave out columns that no rule uses instead of refusing them."
    )
    pack: str = option(
        "`off`, `lines`, `arrow`", one_of("off", "lines", "arrow"), "off", _GROUP,
        "Send rows of one topic together in one message, in their order ([format](packed-messages.md)). `lines`: "
        "values joined by line feeds. `arrow`: an Arrow stream of value, headers and id, or, without a column `value`, "
        "of the other columns as they are. A flight is then a message of several rows.",
    )  # fmt: skip
    pack_max_bytes: int = option(
        "integer", integer(64, 1 << 30), 64 << 10, _GROUP,
        "Payload bytes of a packed message, at most what the middleware takes. A larger row travels alone.",
    )  # fmt: skip
    pack_max_rows: int = option("integer", integer(1, 1_000_000), 1_000, _GROUP, "Rows of a packed message.")
    pack_compression: str = option(
        "`none`, `lz4`, `zstd`", one_of("none", "lz4", "zstd"), "none", _GROUP,
        "Compress packed messages: `lines` as a whole, of `arrow` each buffer. A pack that would not become smaller is "
        "sent as it is. Readers need a release that knows version 2 of the format. Ids do not depend on it.",
    )  # fmt: skip
    pack_compression_level: int | None = option(
        "integer", integer(1, 22), None, _GROUP,
        "Level of `packCompression`: `lz4` 1 to 12, `zstd` 1 to 22.", shown="of the codec: 1",
    )  # fmt: skip
    trace_context: str = option(
        "`off`, `true`, `traceparent`, column", trace_context, "off", _GROUP,
        "Send a header `traceparent` (W3C trace context; extra `otel`). `true`: of a span a partition, which the "
        "tracer provider of the executor makes, with the environment variable `TRACEPARENT` as its parent; a "
        "`traceparent` such as `mama_spark.trace_context()`: the same with it as parent; else the name of a column "
        "with one for each row. A packed message has one header, so columns need `pack=off`. Ids do not depend on it.",
    )  # fmt: skip

"""The options of a write, in the order of the page. :class:`~.sink.SinkOptions` checks combinations. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..contracts.headers import MAX_PACK_ROWS
from .declare import option
from .paths import table_path
from .scopes import BATCHES, NATS, OPENMAMA, STORED, STREAMS, Scope
from .stream_names import StreamRange, stream_range
from .times import duration, duration_or_none
from .transport import DISCOVERY, TransportOptions
from .urls import log_urls
from .values import (
    boolean,
    file_path,
    integer,
    mama_fields,
    metrics_setup,
    names,
    one_of,
    plain_name,
    rate,
    single_token,
    string,
    text,
    topic_prefix,
    trace_context,
)

_MESSAGES, _DELIVERY, _FLIGHT_LOG = "Messages", "Delivery", "Flight log"


@dataclass(frozen=True, repr=False)
class PublishingOptions(TransportOptions):
    """The options of a write; durations are seconds."""

    topic: str | None = option(
        "text", text, None, _MESSAGES, "One topic for all rows, instead of a column `topic`.", shown="column `topic`"
    )
    topic_prefix: str | None = option(
        "text", topic_prefix, None, _MESSAGES, "Prefix of every topic, joined with a dot."
    )
    stream: str | None = option(
        "text", text, None, _MESSAGES,
        "Stream that must take all topics. Malamute: the stream to write to, or, beside a column `stream`, the "
        "stream of the dead letters.", shown="found from the topics",
    )  # fmt: skip
    log: tuple[str, ...] | None = option(
        "URL", log_urls, None, _MESSAGES,
        "Log that `mama tango-source` serves: `nats://host:4222/STREAM`, `mlp://host:9999/stream`.",
        shown="", scope=Scope(bridges=("tango",)),
    )  # fmt: skip
    create_stream: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Create a missing stream with file storage, one replica, fast ingest, and a duplicate window of twice "
        "`retryDeadline` (with `exactlyOnce`, twice `waitTimeout`). For topics `a.…` it is `A`, or that of option "
        "`stream`, with the subject `a.>`. A `deadLetterTopic` outside `a.>` gets its own stream; with option `stream` "
        "it must exist.",
    )  # fmt: skip
    streams: StreamRange | None = option(
        "names", stream_range, None, _MESSAGES,
        "[Spread the topics](../how-to/spread-over-streams.md) over a set of streams: `orders-{0..7}`.", scope=NATS,
    )  # fmt: skip
    grow_streams: bool = option(
        "boolean", boolean, False, _MESSAGES, "Let `streams` enlarge a smaller set.", scope=NATS
    )
    bucket: str | None = option(
        "text", plain_name, None, _MESSAGES,
        "Key-value bucket that the rows change ([columns](columns.md#a-bucket)).", shown="", scope=NATS,
    )  # fmt: skip
    ttl: float | None = option(
        "duration", duration, None, _MESSAGES,
        "With `bucket`: time to live of values without one in the column `ttl`, at least `1s`. The bucket needs "
        "`allow_msg_ttl`.", shown="unlimited", scope=NATS,
    )  # fmt: skip
    ignore_unknown_columns: bool = option(
        "boolean", boolean, False, _MESSAGES, "Ignore unknown columns, instead of failing."
    )
    pack: str = option(
        "`off`, `lines`, `arrow`", one_of("off", "lines", "arrow"), "off", _MESSAGES,
        "Send rows of one topic together in [one message](packed-messages.md): values joined by line feeds, or an "
        "Arrow stream.",
    )  # fmt: skip
    pack_max_bytes: int = option(
        "integer", integer(64, 1 << 30), 64 << 10, _MESSAGES,
        "Most payload bytes of a packed message; a larger row travels alone.",
    )  # fmt: skip
    pack_max_rows: int = option(
        "integer", integer(1, MAX_PACK_ROWS), 1_000, _MESSAGES, "Most rows of a packed message."
    )
    pack_compression: str = option(
        "`none`, `lz4`, `zstd`", one_of("none", "lz4", "zstd"), "none", _MESSAGES,
        "Codec of packed messages.",
    )  # fmt: skip
    pack_compression_level: int | None = option(
        "integer", integer(1, 22), None, _MESSAGES, "`lz4`: 1 to 12; `zstd`: 1 to 22.", shown="of the codec: 1"
    )
    trace_context: str = option(
        "`off`, `true`, `traceparent`, column", trace_context, "off", _MESSAGES,
        "Header `traceparent` ([traces](metrics.md#traces)): a span of each partition (`true`), the given one, or "
        "that of a column.",
    )  # fmt: skip

    wait_for_subscribers: float = option(
        "duration", duration_or_none, 5.0, _MESSAGES,
        "Longest wait of a task for subscribers of its topics.",
        shown="5s", scope=OPENMAMA,
    )  # fmt: skip
    require_subscribers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Fail rows of topics without subscribers, as `NO_SUBSCRIBERS`.", scope=OPENMAMA,
    )  # fmt: skip
    mama_fields: tuple[tuple[str, int | None, str | None], ...] = option(
        "fields", mama_fields, (), _MESSAGES,
        "Numbers and types of fields, `name[:fid[:type]]`: `wBidPrice:109:PRICE(2), wText::STRING`.",
        shown="", scope=OPENMAMA,
    )  # fmt: skip
    mama_dictionary: str | None = option(
        "path", file_path, None, _MESSAGES,
        "OpenMAMA data dictionary, on driver and executors, for the fields not in `mamaFields`.", scope=OPENMAMA,
    )  # fmt: skip
    mama_numbers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Number the messages of each topic (`MdSeqNum`, `MamaSenderId`); needs one partition (`coalesce(1)`).",
        scope=OPENMAMA,
    )  # fmt: skip

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`", one_of("auto", "message", "batch", "none"), "auto", _DELIVERY,
        "`message`: one acknowledgement a message. `batch`: fast ingest; with ids on replicated streams it needs "
        "`order=partition`. `none`: no acknowledgement. `auto`: `batch` where stream and server allow it, with either "
        "`dedup=false` or `order=partition`, else `message`.",
    )  # fmt: skip
    dedup: bool = option("boolean", boolean, True, _DELIVERY, "Send message ids; the broker drops a repeated id.")
    id_column: str | None = option(
        "column", string, None, _DELIVERY,
        "Column with [your own ids](columns.md#message-ids-of-your-own), strings or integers.", shown="",
    )  # fmt: skip
    on_duplicate_id: str | None = option(
        "`fail`, `warn`", one_of("fail", "warn"), None, _DELIVERY,
        "Fail a row whose id its task has already sent, or send it with a warning.", shown="`fail`",
    )  # fmt: skip
    id_prefix: str | None = option(
        "text", text, None, _DELIVERY,
        "First part of default ids.",
        shown="query id or run id",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "text", text, None, _DELIVERY,
        "With `txnVersion`: [identity of the write](../how-to/publish-a-batch-once.md), as in Delta.",
        scope=BATCHES,
    )  # fmt: skip
    txn_version: int | None = option(
        "integer", integer(0, 2**63 - 1), None, _DELIVERY, "Number of the run; it must rise.", scope=BATCHES
    )
    exactly_once: bool = option(
        "boolean", boolean, False, _DELIVERY,
        "Store each row once when its batch is [repeated](../explanation/delivery.md#exactly-once), also much later. "
        "Repeated batch writes need `txnAppId` and `txnVersion`.", scope=STORED,
    )  # fmt: skip
    on_retention: str = option(
        "`fail`, `publish`", one_of("fail", "publish"), "fail", _DELIVERY,
        "With `exactlyOnce`, if stored messages may have been removed: fail, or publish all rows not found.",
        scope=STORED,
    )  # fmt: skip
    on_silent_server: str = option(
        "`wait`, `publish`", one_of("wait", "publish"), "wait", _DELIVERY,
        "With `exactlyOnce`, rows that a [silent server](failures.md#when-something-stands-still) "
        "may hold: wait, or send them again after `waitTimeout`.", scope=NATS,
    )  # fmt: skip
    batches_stream: str = option(
        "text", single_token, "MAMA_BATCHES", _DELIVERY,
        "With `exactlyOnce`: [stream of the markers](failures.md#the-stream-of-the-markers).",
        shown="`MAMA_BATCHES`", scope=STORED,
    )  # fmt: skip

    max_in_flight: int = option(
        "integer", integer(1, 1_000_000), 4096, _DELIVERY, "Most unacknowledged messages of a partition."
    )
    refill_allowed_at: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY,
        "Unacknowledged messages at which a full window admits more.", shown="half of `maxInFlight`",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 5.0, _DELIVERY, "Longest wait for an acknowledgement.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _DELIVERY, "Longest wait in the publisher's loop.", shown="100ms"
    )
    hold_pause_time: float = option(
        "duration", duration, 0.1, _DELIVERY, "Longest pause while the window is full.", shown="100ms"
    )
    retry_attempts: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY, "Resends of one message; 0: never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _DELIVERY, "Wait before the first resend; doubles.", shown="250ms"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _DELIVERY, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _DELIVERY, "Longest time from first to last send.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`", one_of("resend", "report"), "resend", _DELIVERY,
        "With `dedup=false`, a message whose acknowledgement is lost: resend it, or settle it as `timeout`.",
    )  # fmt: skip
    on_unavailable: str = option(
        "`fail`, `wait`", one_of("fail", "wait"), "fail", _DELIVERY,
        "[When nothing is acknowledged](../how-to/size-the-window.md#when-nothing-is-acknowledged) for "
        "`retryDeadline`, or with `exactlyOnce` a [silent server](failures.md#when-something-stands-still) may hold "
        "rows: fail the task, or keep the messages and wait.",
    )  # fmt: skip
    order: str = option(
        "`none`, `partition`", one_of("none", "partition"), "none", _DELIVERY,
        "`partition`: keep the order of each partition, also over resends.",
    )  # fmt: skip
    max_rate_per_partition: float | None = option(
        "number", rate, None, _DELIVERY, "Most messages a second of each partition.", shown="unlimited"
    )

    on_error: str = option(
        "`fail`, `deadletter`, `log`", one_of("fail", "deadletter", "log"), "fail", _DELIVERY,
        "[Rows that failed](../how-to/handle-dead-letters.md): fail the write after publishing the others, send them "
        "to the dead letters, or only log them in the flight log.",
    )  # fmt: skip
    error_tolerance: str = option(
        "`data`, `all`", one_of("data", "all"), "data", _DELIVERY,
        "`deadletter` and `log` cover invalid and rejected rows; `all`: also outages and unanswered rows, which "
        "otherwise fail the write.",
    )  # fmt: skip
    dead_letter_topic: str | None = option("text", text, None, _DELIVERY, "Topic for failed rows.")
    dead_letter_table: str | None = option(
        "path", table_path, None, _DELIVERY, "Delta table for failed rows; as `flightLog`."
    )

    flight_log: str | None = option(
        "path", table_path, None, _FLIGHT_LOG,
        "Delta table of outcomes: [a folder or URL](../how-to/install-on-a-cluster.md#where-the-flight-log-is).",
        shown="off, with a warning",
    )  # fmt: skip
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`", one_of("all", "outcomes", "errors"), "outcomes", _FLIGHT_LOG,
        "`published` events too, one terminal event a row, or only failures and `acked` rows with `info`.",
    )  # fmt: skip
    flight_log_columns: tuple[str, ...] = option(
        "columns", names("column"), (), _FLIGHT_LOG,
        "Columns copied to the flight log and the dead-letter table.", shown="",
    )  # fmt: skip
    flight_log_payload: str = option(
        "`none`, `failed`, `all`", one_of("none", "failed", "all"), "failed", _FLIGHT_LOG,
        "Rows whose payload and headers the flight log keeps.",
    )  # fmt: skip
    flight_log_compact_every: int = option(
        "integer", integer(0), 0, _FLIGHT_LOG,
        "Merge the small files after this many micro-batches; 0: never.", scope=STREAMS,
    )  # fmt: skip
    metrics: str = option(
        "`off`, `otel`, `module:function`", metrics_setup, "off", _FLIGHT_LOG,
        "Export [metrics](metrics.md#publishers) by OpenTelemetry, with the meter provider of the process or of the "
        "function.",
    )  # fmt: skip
    gc_freeze: bool = option(
        "boolean", boolean, False, _FLIGHT_LOG,
        "Exclude imported objects from garbage collection in Python workers "
        "([effect](../explanation/performance.md#what-to-set)).", scope=STREAMS,
    )  # fmt: skip

    announce: bool = option("boolean", boolean, False, DISCOVERY, "Announce the write as a source.")
    source_name: str | None = option(
        "text", text, None, DISCOVERY, "Name of the source.", shown="query or application name"
    )
    announce_counts: float | None = option(
        "duration", duration_or_none, None, DISCOVERY,
        "Interval of the events `counts` of each publisher.", shown="none",
    )  # fmt: skip
    source_ttl: float = option(
        "duration", duration, 30.0, DISCOVERY,
        "An unrenewed source turns SUSPECT after half of it, OFFLINE after all. Must exceed the trigger interval.",
        shown="30s",
    )  # fmt: skip
    topic_events: str = option(
        "`topic`, `publisher`, `off`", one_of("topic", "publisher", "off"), "topic", DISCOVERY,
        "Publish events of topics and publishers, of publishers, or none.",
    )  # fmt: skip

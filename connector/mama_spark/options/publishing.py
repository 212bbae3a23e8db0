"""What a write may be told, in the order of the page of options: :class:`~mama_spark.options.sink.SinkOptions` checks
what goes together. Pure."""

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

    # --- which topic and stream the rows go to, and how they are packed ---

    topic: str | None = option(
        "text", text, None, _MESSAGES, "One topic for all rows, instead of a column `topic`.", shown="column `topic`"
    )
    topic_prefix: str | None = option(
        "text", topic_prefix, None, _MESSAGES, "Prefix of every topic, joined with a dot."
    )
    stream: str | None = option(
        "text", text, None, _MESSAGES,
        "Stream that must take all topics. Malamute: the stream to write to; with a column `stream`, the stream of the "
        "dead letters.", shown="found from the topics",
    )  # fmt: skip
    log: tuple[str, ...] | None = option(
        "URL", log_urls, None, _MESSAGES,
        "Log that takes the records of the source and that `mama tango-source` serves: `nats://host:4222/STREAM`, "
        "`mlp://host:9999/stream`. Options of the connection are those of the log.",
        shown="", scope=Scope(bridges=("tango",)),
    )  # fmt: skip
    create_stream: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Create a missing stream: file storage, duplicate window of twice `retryDeadline` (with `exactlyOnce`, twice "
        "`waitTimeout`), fast ingest allowed. A Malamute broker makes streams by itself.",
    )  # fmt: skip
    streams: StreamRange | None = option(
        "names", stream_range, None, _MESSAGES,
        "[Spread the topics](../how-to/spread-over-streams.md) over a set of streams: `orders-{0..7}`. A topic stays "
        "in one stream, in its order. `createStream` makes missing ones. Instead of `stream`.", scope=NATS,
    )  # fmt: skip
    grow_streams: bool = option(
        "boolean", boolean, False, _MESSAGES, "Let `streams` enlarge a smaller set: topics change streams.", scope=NATS
    )
    bucket: str | None = option(
        "text", plain_name, None, _MESSAGES,
        "Key-value bucket that the rows change, instead of topics ([columns](columns.md#a-bucket)). A bucket that "
        "mirrors another is written to where clients of NATS write.", shown="", scope=NATS,
    )  # fmt: skip
    ttl: float | None = option(
        "duration", duration, None, _MESSAGES,
        "With `bucket`: how long values stay of which the column `ttl` says nothing; a second at least. The bucket "
        "must allow it (`allow_msg_ttl`).", shown="as long as the bucket keeps them", scope=NATS,
    )  # fmt: skip
    ignore_unknown_columns: bool = option(
        "boolean", boolean, False, _MESSAGES, "Ignore columns that no rule uses, instead of refusing them."
    )
    pack: str = option(
        "`off`, `lines`, `arrow`", one_of("off", "lines", "arrow"), "off", _MESSAGES,
        "Send rows of one topic together in [one message](packed-messages.md), in their order. `lines`: values joined "
        "by line feeds. `arrow`: an Arrow stream of value, headers and id, or of the other columns where there is no "
        "`value`. A flight is then a message of several rows.",
    )  # fmt: skip
    pack_max_bytes: int = option(
        "integer", integer(64, 1 << 30), 64 << 10, _MESSAGES,
        "Most payload bytes of a packed message. A larger row travels alone.",
    )  # fmt: skip
    pack_max_rows: int = option(
        "integer", integer(1, MAX_PACK_ROWS), 1_000, _MESSAGES, "Most rows of a packed message."
    )
    pack_compression: str = option(
        "`none`, `lz4`, `zstd`", one_of("none", "lz4", "zstd"), "none", _MESSAGES,
        "Codec of packed messages. A pack that would not become smaller is sent as it is.",
    )  # fmt: skip
    pack_compression_level: int | None = option(
        "integer", integer(1, 22), None, _MESSAGES, "`lz4`: 1 to 12; `zstd`: 1 to 22.", shown="of the codec: 1"
    )
    trace_context: str = option(
        "`off`, `true`, `traceparent`, column", trace_context, "off", _MESSAGES,
        "Send a header `traceparent` (W3C; extra `otel`). `true`: of a span for each partition, by the executor's "
        "tracer provider, below the environment variable `TRACEPARENT`; a `traceparent`, such as "
        "`mama_spark.trace_context()`: below that one; a column: its value for each row (with `pack=off`). Ids do not "
        "depend on it.",
    )  # fmt: skip

    # --- readers and fields of OpenMAMA ---

    wait_for_subscribers: float = option(
        "duration", duration_or_none, 5.0, _MESSAGES,
        "Longest wait of a task for readers of its topics: earlier messages reach nobody. `0`: no wait.",
        shown="5s", scope=OPENMAMA,
    )  # fmt: skip
    require_subscribers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Topics without readers after that wait: their rows fail with `NO_SUBSCRIBERS` (`true`), or are `published` "
        "with `ack_level` = `none`.", scope=OPENMAMA,
    )  # fmt: skip
    mama_fields: tuple[tuple[str, int | None, str | None], ...] = option(
        "fields", mama_fields, (), _MESSAGES,
        "Numbers and types of fields: `wBidPrice:109:PRICE(2), wText::STRING` (`name[:fid[:type]]`). Each other column "
        "is a field without a number, of the column's type.", shown="", scope=OPENMAMA,
    )  # fmt: skip
    mama_dictionary: str | None = option(
        "path", file_path, None, _MESSAGES,
        "Data dictionary, lines `fid|name|type`, readable on driver and executors, for fields that `mamaFields` does "
        "not name.", scope=OPENMAMA,
    )  # fmt: skip
    mama_numbers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Number the messages of each topic (`MdSeqNum`, `MamaSenderId`), so that readers notice gaps. The DataFrame "
        "must have one partition (`coalesce(1)`), or the write fails.", scope=OPENMAMA,
    )  # fmt: skip

    # --- how messages are acknowledged, and the ids by which a broker knows them again ---

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`", one_of("auto", "message", "batch", "none"), "auto", _DELIVERY,
        "`message`: one acknowledgement a row, with sequence and duplicate flag. `batch`: fast ingest, acknowledged in "
        "runs; refused with ids on replicated streams. `none`: fire and forget. `auto`: `batch` where `dedup` is off "
        "and stream and server allow it, else `message`.",
    )  # fmt: skip
    dedup: bool = option(
        "boolean", boolean, True, _DELIVERY, "Send ids, so that the broker drops a message that is sent again."
    )
    id_column: str | None = option(
        "column", string, None, _DELIVERY,
        "Column with the id of each message, string or integer, instead of default ids. Of rows with one id the broker "
        "keeps the first.", shown="",
    )  # fmt: skip
    on_duplicate_id: str | None = option(
        "`fail`, `warn`", one_of("fail", "warn"), None, _DELIVERY,
        "A row whose id its task has sent before: it fails and is not sent (`fail`), or is sent, and the broker may "
        "drop it (`warn`). Counted, and named in the flight log (`info`).", shown="`fail`",
    )  # fmt: skip
    id_prefix: str | None = option(
        "text", text, None, _DELIVERY,
        "First part of default ids. A constant one keeps ids stable over runs of a batch job.",
        shown="query id or run id",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "text", text, None, _DELIVERY,
        "With `txnVersion`: identity of a batch write that may be repeated, as in Delta.", scope=BATCHES,
    )  # fmt: skip
    txn_version: int | None = option(
        "integer", integer(0, 2**63 - 1), None, _DELIVERY, "Number of the run; rises with each batch.", scope=BATCHES
    )
    exactly_once: bool = option(
        "boolean", boolean, False, _DELIVERY,
        "Store each row of a batch once, however late it is [repeated](../explanation/delivery.md#exactly-once). Needs "
        "`dedup=true`; a batch write needs `txnAppId` and `txnVersion`.", scope=STORED,
    )  # fmt: skip
    on_retention: str = option(
        "`fail`, `publish`", one_of("fail", "publish"), "fail", _DELIVERY,
        "With `exactlyOnce`, when messages of the batch may have been removed before they were read back: fail, or "
        "publish all rows not found (some may be stored twice).", scope=STORED,
    )  # fmt: skip
    on_silent_server: str = option(
        "`wait`, `publish`", one_of("wait", "publish"), "wait", _DELIVERY,
        "With `exactlyOnce`, rows that a server without answer may have: wait until it is known to have none, as long "
        "as `onUnavailable` says, or send them again after `waitTimeout` (the flight log says which may be stored "
        "twice).", scope=NATS,
    )  # fmt: skip
    batches_stream: str = option(
        "text", single_token, "MAMA_BATCHES", _DELIVERY,
        "With `exactlyOnce`: stream of the markers of batches, made when missing. Malamute: it must be stored (engine "
        "`durable` or `jetstream`).", shown="`MAMA_BATCHES`", scope=STORED,
    )  # fmt: skip

    # --- the window, time-outs, resends and order ---

    max_in_flight: int = option(
        "integer", integer(1, 1_000_000), 4096, _DELIVERY, "Most unacknowledged messages of a partition."
    )
    refill_allowed_at: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY,
        "A full window admits more when this many or fewer are unacknowledged.", shown="half of `maxInFlight`",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 5.0, _DELIVERY, "Longest wait for the acknowledgement of each send.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _DELIVERY, "Longest wait of the publisher's loop.", shown="100ms"
    )
    hold_pause_time: float = option(
        "duration", duration, 0.1, _DELIVERY, "Longest pause while the window is full.", shown="100ms"
    )
    retry_attempts: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY, "Resends of one message; 0: never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _DELIVERY, "Wait before the first resend; doubles from there.", shown="250ms"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _DELIVERY, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _DELIVERY, "Longest time from the first send to the last resend.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`", one_of("resend", "report"), "resend", _DELIVERY,
        "With `dedup=false`, a message whose acknowledgement is lost: send it again (it may be stored twice), or "
        "settle it as `timeout`.",
    )  # fmt: skip
    on_unavailable: str = option(
        "`fail`, `wait`", one_of("fail", "wait"), "fail", _DELIVERY,
        "When the middleware is away or stores nothing (disk full). `fail`: after `retryDeadline` without an "
        "acknowledgement the task fails, and Spark retries it. `wait`: keep the messages and warn every 30 seconds; "
        "`retryDeadline` counts only while messages are stored.",
    )  # fmt: skip
    order: str = option(
        "`none`, `partition`", one_of("none", "partition"), "none", _DELIVERY,
        "`partition`: store the rows of a partition in their order, also over resends.",
    )  # fmt: skip
    max_rate_per_partition: float | None = option(
        "number", rate, None, _DELIVERY, "Most messages a second of each partition.", shown="unlimited"
    )

    # --- what becomes of rows that failed ---

    on_error: str = option(
        "`fail`, `deadletter`, `log`", one_of("fail", "deadletter", "log"), "fail", _DELIVERY,
        "Rows that failed for good: fail the write after all others were published, send them to the dead letters, or "
        "leave them to the flight log.",
    )  # fmt: skip
    error_tolerance: str = option(
        "`data`, `all`", one_of("data", "all"), "data", _DELIVERY,
        "Failures that `deadletter` and `log` cover: of the row itself, or outages too.",
    )  # fmt: skip
    dead_letter_topic: str | None = option(
        "text", text, None, _DELIVERY, "Topic for failed rows, with `Mama-Error-*` headers and id + `-dlq`."
    )
    dead_letter_table: str | None = option(
        "path", table_path, None, _DELIVERY, "Delta table for failed rows, in full; path or URL as for `flightLog`."
    )

    # --- the flight log, and metrics ---

    flight_log: str | None = option(
        "path", table_path, None, _FLIGHT_LOG,
        "Delta table of the outcome of every row: a folder that the driver and all executors see, or a URL of an "
        "object store. A relative path begins where the driver was started.", shown="off, with a warning",
    )  # fmt: skip
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`", one_of("all", "outcomes", "errors"), "outcomes", _FLIGHT_LOG,
        "`outcomes`: one terminal event a row. `all`: `published` events, too. `errors`: only rows not acked.",
    )  # fmt: skip
    flight_log_columns: tuple[str, ...] = option(
        "columns", names("column"), (), _FLIGHT_LOG,
        "Columns of the DataFrame copied to the flight log and the dead-letter table; needs one of these.", shown="",
    )  # fmt: skip
    flight_log_payload: str = option(
        "`none`, `failed`, `all`", one_of("none", "failed", "all"), "failed", _FLIGHT_LOG,
        "Rows whose payload and headers the flight log keeps, to publish them again.",
    )  # fmt: skip
    flight_log_compact_every: int = option(
        "integer", integer(0), 0, _FLIGHT_LOG,
        "Merge small files of the flight log every so many micro-batches; a failure of the merge is logged. 0: leave "
        "it to `mama flights maintain`.", scope=STREAMS,
    )  # fmt: skip
    metrics: str = option(
        "`off`, `otel`, `module:function`", metrics_setup, "off", _FLIGHT_LOG,
        "Export metrics of executors by OpenTelemetry (extra `otel`): by the meter provider of the process, or by the "
        "one that the function returns, called once a process.",
    )  # fmt: skip
    gc_freeze: bool = option(
        "boolean", boolean, False, _FLIGHT_LOG,
        "Exclude imported objects from garbage collection in Python workers (`gc.freeze`): 25 to 50 ms less in a small "
        "micro-batch. It holds for all Python functions of these workers.", scope=STREAMS,
    )  # fmt: skip

    # --- how a write announces itself ---

    announce: bool = option(
        "boolean", boolean, False, DISCOVERY, "Announce the write as a source, its partitions as publishers."
    )
    source_name: str | None = option(
        "text", text, None, DISCOVERY, "Name of the source.", shown="query or application name"
    )
    announce_counts: float | None = option(
        "duration", duration_or_none, None, DISCOVERY,
        "Interval of events `counts` of each publisher (taken, acknowledged, failed, in flight), which `mama top` "
        "shows.", shown="none",
    )  # fmt: skip
    source_ttl: float = option(
        "duration", duration, 30.0, DISCOVERY,
        "A source without a sign of life turns SUSPECT after half of it, OFFLINE after all. Must exceed the trigger "
        "interval of a stream.", shown="30s",
    )  # fmt: skip
    topic_events: str = option(
        "`topic`, `publisher`, `off`", one_of("topic", "publisher", "off"), "topic", DISCOVERY,
        "Events of publishers in the flight log (and in discovery with `announce`): of each topic too, only of "
        "publishers, or none.",
    )  # fmt: skip

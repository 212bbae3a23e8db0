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
        "text", text, None, _MESSAGES,
        "One topic for all rows; then no `topic` column is needed.", shown="column `topic`",
    )  # fmt: skip
    topic_prefix: str | None = option(
        "text", topic_prefix, None, _MESSAGES, "Put before every topic, joined with a dot."
    )
    stream: str | None = option(
        "text", text, None, _MESSAGES,
        "JetStream stream that must take all topics, found from the topics when not given; Malamute stream that is "
        "written to (or at the end of `url`). Malamute: with a column `stream` each row goes to its own, and this one "
        "takes the dead letters.", shown="found from the topics",
    )  # fmt: skip
    log: tuple[str, ...] | None = option(
        "URL", log_urls, None, _MESSAGES,
        "Tango: the log that takes the records of the source, and that `mama tango-source` serves: "
        "`nats://host:4222/STREAM`, `mlp://host:9999/stream`. Options of the connection are those of the log.",
        shown="", scope=Scope(bridges=("tango",)),
    )  # fmt: skip
    create_stream: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Create a missing stream: file storage, duplicate window of twice `retryDeadline`, fast ingest allowed. "
        "(A Malamute broker makes streams when they are first written to; its configuration says which are durable.)",
    )  # fmt: skip
    streams: StreamRange | None = option(
        "names", stream_range, None, _MESSAGES,
        "Spread the topics over the streams of a set ([how](../how-to/spread-over-streams.md)), `orders-{0..7}`: those "
        "of a topic are in one, in their order. `createStream` makes what is missing. Instead of `stream`.", scope=NATS,
    )  # fmt: skip
    grow_streams: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "The streams of `streams` may be a smaller set, which becomes this one: topics change streams.", scope=NATS,
    )  # fmt: skip
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
        "boolean", boolean, False, _MESSAGES, "Leave out columns that no rule uses instead of refusing them."
    )
    pack: str = option(
        "`off`, `lines`, `arrow`", one_of("off", "lines", "arrow"), "off", _MESSAGES,
        "Send rows of one topic together in one message, in their order ([format](packed-messages.md)). `lines`: "
        "values joined by line feeds. `arrow`: an Arrow stream of value, headers and id, or, without a column `value`, "
        "of the other columns as they are. A flight is then a message of several rows.",
    )  # fmt: skip
    pack_max_bytes: int = option(
        "integer", integer(64, 1 << 30), 64 << 10, _MESSAGES,
        "Payload bytes of a packed message, at most what the middleware takes. A larger row travels alone.",
    )  # fmt: skip
    pack_max_rows: int = option("integer", integer(1, MAX_PACK_ROWS), 1_000, _MESSAGES, "Rows of a packed message.")
    pack_compression: str = option(
        "`none`, `lz4`, `zstd`", one_of("none", "lz4", "zstd"), "none", _MESSAGES,
        "Compress packed messages: `lines` as a whole, of `arrow` each buffer. A pack that would not become smaller is "
        "sent as it is. Readers need a release that knows version 2 of the format. Ids do not depend on it.",
    )  # fmt: skip
    pack_compression_level: int | None = option(
        "integer", integer(1, 22), None, _MESSAGES,
        "Level of `packCompression`: `lz4` 1 to 12, `zstd` 1 to 22.", shown="of the codec: 1",
    )  # fmt: skip
    trace_context: str = option(
        "`off`, `true`, `traceparent`, column", trace_context, "off", _MESSAGES,
        "Send a header `traceparent` (W3C trace context; extra `otel`). `true`: of a span a partition, which the "
        "tracer provider of the executor makes, with the environment variable `TRACEPARENT` as its parent; a "
        "`traceparent` such as `mama_spark.trace_context()`: the same with it as parent; else the name of a column "
        "with one for each row. A packed message has one header, so columns need `pack=off`. Ids do not depend on it.",
    )  # fmt: skip

    # --- readers and fields of OpenMAMA ---

    wait_for_subscribers: float = option(
        "duration", duration_or_none, 5.0, _MESSAGES,
        "A task waits so long for readers of its topics before its first messages: what is sent earlier reaches "
        "nobody. `0` = not at all.", shown="5s", scope=OPENMAMA,
    )  # fmt: skip
    require_subscribers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Rows of topics that nobody reads then: fail with `NO_SUBSCRIBERS` (`true`), or are `published`, with "
        "`ack_level` = `none`.", scope=OPENMAMA,
    )  # fmt: skip
    mama_fields: tuple[tuple[str, int | None, str | None], ...] = option(
        "fields", mama_fields, (), _MESSAGES,
        "Numbers and types of fields: `name[:fid[:type]]`, separated by commas, as `wBidPrice:109:PRICE(2), "
        "wText::STRING`. Each other column is a field of its name, without a number and of the type of the column.",
        shown="", scope=OPENMAMA,
    )  # fmt: skip
    mama_dictionary: str | None = option(
        "path", file_path, None, _MESSAGES,
        "Data dictionary, lines `fid|name|type`, readable on driver and executors: numbers and types of the fields "
        "that `mamaFields` does not name.", scope=OPENMAMA,
    )  # fmt: skip
    mama_numbers: bool = option(
        "boolean", boolean, False, _MESSAGES,
        "Number the messages of each topic (`MdSeqNum`, and a `MamaSenderId` of the task), so that readers notice "
        "gaps. Readers take one numbering a topic: the DataFrame must have one partition (`coalesce(1)`); of several, "
        "the first one is published, and the write fails.", scope=OPENMAMA,
    )  # fmt: skip

    # --- how messages are acknowledged, and the ids by which a broker knows them again ---

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`", one_of("auto", "message", "batch", "none"), "auto", _DELIVERY,
        "`message`: an acknowledgement with sequence and duplicate flag for each row. `batch`: fast ingest, "
        "acknowledged in runs, no sequences. `none`: fire and forget. `auto`: `batch` where `dedup` is off and "
        "stream and server allow it (and while they do), else `message`. `batch` together with ids is refused on "
        "replicated streams, where the server may count as stored what is only proposed.",
    )  # fmt: skip
    dedup: bool = option(
        "boolean", boolean, True, _DELIVERY,
        "Send ids that the broker deduplicates on, so that a resend stores nothing twice.",
    )  # fmt: skip
    id_column: str | None = option(
        "column", string, None, _DELIVERY,
        "Column with the id of each message, string or integer, in place of default ids. Rows of a write that share an "
        "id are one message to the broker, which keeps the first. Empty: no column. No column is taken for its name.",
        shown="",
    )  # fmt: skip
    on_duplicate_id: str | None = option(
        "`fail`, `warn`", one_of("fail", "warn"), None, _DELIVERY,
        "A row with an id that its task has sent before (a doubled id): `fail`: the row fails and is not sent, and "
        "`onError` says what follows. `warn`: it is sent, and the broker may drop it. Both count it, and the flight "
        "log says so in `info`.", shown="`fail`",
    )  # fmt: skip
    id_prefix: str | None = option(
        "text", text, None, _DELIVERY,
        "First part of default ids. Give a constant one to make ids stable over re-runs of a batch job.",
        shown="query id or run id",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "text", text, None, _DELIVERY,
        "With `txnVersion`: identity of a batch write that may be repeated (Delta's names).", scope=BATCHES,
    )  # fmt: skip
    txn_version: int | None = option(
        "integer", integer(0, 2**63 - 1), None, _DELIVERY,
        "With `txnAppId`: rises with each batch, e.g. the batch id.", scope=BATCHES,
    )  # fmt: skip
    exactly_once: bool = option(
        "boolean", boolean, False, _DELIVERY,
        "Store each row of a batch once, however long after an outage it is repeated: a repetition first reads from "
        "the stream which rows are there, and publishes the others "
        "([what that promises and costs](../explanation/delivery.md#exactly-once)). Needs `dedup=true`; batch writes "
        "are recognised by `txnAppId` and `txnVersion`.", scope=STORED,
    )  # fmt: skip
    on_retention: str = option(
        "`fail`, `publish`", one_of("fail", "publish"), "fail", _DELIVERY,
        "With `exactlyOnce`, when messages of the batch may have been removed before they were read back: fail, or "
        "publish all rows that are not found, of which some may then be stored twice.", scope=STORED,
    )  # fmt: skip
    on_silent_server: str = option(
        "`wait`, `publish`", one_of("wait", "publish"), "wait", _DELIVERY,
        "With `exactlyOnce`, when a server that messages were sent to does not answer any more (it stands still, or is "
        "cut off, and may store them later): rows that may be there wait until it is known to have none, as long as "
        "`onUnavailable` says (`wait`); or they are sent again after `waitTimeout`, and the flight log says which may "
        "be stored twice (`publish`).", scope=NATS,
    )  # fmt: skip
    batches_stream: str = option(
        "text", single_token, "MAMA_BATCHES", _DELIVERY,
        "With `exactlyOnce`: the stream that keeps where each batch began. Made when it is missing; over Malamute the "
        "broker's configuration must have it stored (engine `durable` or `jetstream`).",
        shown="`MAMA_BATCHES`", scope=STORED,
    )  # fmt: skip

    # --- the window, time-outs, resends and order ---

    max_in_flight: int = option(
        "integer", integer(1, 1_000_000), 4096, _DELIVERY, "Messages of a partition that wait for an acknowledgement."
    )
    refill_allowed_at: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY,
        "A full window lets in more when this many or fewer are left.", shown="half of `maxInFlight`",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 5.0, _DELIVERY, "Wait for the acknowledgement of each send.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _DELIVERY,
        "Longest wait of the publisher's loop before it looks again.", shown="100ms",
    )  # fmt: skip
    hold_pause_time: float = option(
        "duration", duration, 0.1, _DELIVERY,
        "Longest pause while the window is full; settlements end it.", shown="100ms",
    )  # fmt: skip
    retry_attempts: int | None = option(
        "integer", integer(0, 1_000_000), None, _DELIVERY, "Resends of one message; 0 = never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _DELIVERY, "Wait before the first resend; doubles from there.", shown="250ms"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _DELIVERY, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _DELIVERY, "No resend later than this after the first send.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`", one_of("resend", "report"), "resend", _DELIVERY,
        "What to do with a message whose acknowledgement is lost when `dedup` is off: send it again (it may be stored "
        "twice), or settle it as `timeout`.",
    )  # fmt: skip
    on_unavailable: str = option(
        "`fail`, `wait`", one_of("fail", "wait"), "fail", _DELIVERY,
        "What to do when the middleware is away, or answers but stores nothing (its disk is full). `fail`: nothing was "
        "acknowledged for `retryDeadline`, so the task fails, and Spark tries it again. `wait`: keep the messages and "
        "warn every 30 seconds until they are stored, however long it takes; `retryDeadline` counts only while "
        "messages are stored.",
    )  # fmt: skip
    order: str = option(
        "`none`, `partition`", one_of("none", "partition"), "none", _DELIVERY,
        "`partition`: rows of a partition are stored in their order, also over resends.",
    )  # fmt: skip
    max_rate_per_partition: float | None = option(
        "number", rate, None, _DELIVERY, "Messages a second of each partition.", shown="unlimited"
    )

    # --- what becomes of rows that failed ---

    on_error: str = option(
        "`fail`, `deadletter`, `log`", one_of("fail", "deadletter", "log"), "fail", _DELIVERY,
        "When rows failed for good: fail the write when everything else is published, send them to the dead letters, "
        "or leave them to the flight log.",
    )  # fmt: skip
    error_tolerance: str = option(
        "`data`, `all`", one_of("data", "all"), "data", _DELIVERY,
        "What `deadletter` and `log` cover: what the row itself is guilty of, or outages too.",
    )  # fmt: skip
    dead_letter_topic: str | None = option(
        "text", text, None, _DELIVERY, "Topic for failed rows, with `Mama-Error-*` headers and id + `-dlq`."
    )
    dead_letter_table: str | None = option(
        "path", table_path, None, _DELIVERY,
        "Delta table for failed rows, in full. A path or URL as for `flightLog`, and another one.",
    )  # fmt: skip

    # --- the flight log, and metrics ---

    flight_log: str | None = option(
        "path", table_path, None, _FLIGHT_LOG,
        "Delta table that tells what became of every row: a folder that the driver and all executors see, or a URL of "
        "an object store. A relative path begins where the driver was started.", shown="off, with a warning",
    )  # fmt: skip
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`", one_of("all", "outcomes", "errors"), "outcomes", _FLIGHT_LOG,
        "`all`: also `published` events. `outcomes`: one terminal event a row. `errors`: only what was not acked.",
    )  # fmt: skip
    flight_log_columns: tuple[str, ...] = option(
        "columns", names("column"), (), _FLIGHT_LOG,
        "Columns of the DataFrame that go to the flight log and to the dead-letter table, to join with the source; one "
        "of the two is needed.", shown="",
    )  # fmt: skip
    flight_log_payload: str = option(
        "`none`, `failed`, `all`", one_of("none", "failed", "all"), "failed", _FLIGHT_LOG,
        "Whose payload and headers the flight log keeps, to publish them again.",
    )  # fmt: skip
    flight_log_compact_every: int = option(
        "integer", integer(0), 0, _FLIGHT_LOG,
        "Merge the small files of the flight log in the commit of every so many micro-batches. A failure of that is "
        "logged and fails nothing. 0: leave it to `mama flights maintain`.", scope=STREAMS,
    )  # fmt: skip
    metrics: str = option(
        "`off`, `otel`, `module:function`", metrics_setup, "off", _FLIGHT_LOG,
        "Whether executors export metrics by OpenTelemetry (extra `otel`): by the meter provider of the process, or by "
        "the one that the function returns, which is called once in each process.",
    )  # fmt: skip
    gc_freeze: bool = option(
        "boolean", boolean, False, _FLIGHT_LOG,
        "Python workers collect garbage after each piece of work, and then visit what they have imported no more "
        "(`gc.freeze`): 25 to 50 ms less in each worker of a small micro-batch. It holds for all Python functions of "
        "these workers.", scope=STREAMS,
    )  # fmt: skip

    # --- how a write announces itself ---

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

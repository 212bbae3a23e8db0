"""The options of ``mamapub``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import urlsplit

from ..errors import ConfigError, OptionError
from ..middlewares import SCHEMES
from .declare import camel, option, refuse_alone, require
from .paths import absolute_path, is_inside, table_path
from .stream_names import StreamRange, stream_range
from .transport import DISCOVERY, TransportOptions
from .urls import log_urls, split_stream
from .uses import BATCHES, NATS, OPENMAMA, STORED, STREAMS, Scope
from .values import (
    boolean,
    duration,
    duration_or_none,
    file_path,
    integer,
    mama_fields,
    metrics_setup,
    names,
    one_of,
    rate,
    single_token,
    string,
    text,
)
from .window import RetryPolicy, WindowConfig

_WHAT, _ACK, _READERS, _WINDOW, _ERRORS, _LOG = (
    "Messages",
    "Acknowledgement and identity",
    "OpenMAMA",
    "Window and retry",
    "Errors",
    "Flight log",
)
#: Where sources are announced.
_PLACES = ("discovery_topic", "sources_stream", "events_stream", "advisories_stream")


@dataclass(frozen=True, repr=False)
class SinkOptions(TransportOptions, format_name="mamapub"):
    """The options of ``mamapub``; durations are seconds. Make it with :meth:`parse`."""

    topic: str | None = option(
        "text", text, None, _WHAT, "One topic for all rows; then no `topic` column is needed.", shown="column `topic`"
    )
    topic_prefix: str | None = option("text", text, None, _WHAT, "Put before every topic, joined with a dot.")
    stream: str | None = option(
        "text",
        text,
        None,
        _WHAT,
        "JetStream stream that must take all topics, found from the topics when not given; Malamute stream that is "
        "written to (or at the end of `url`). Malamute: with a column `stream` each row goes to its own, and this one "
        "takes the dead letters.",
        shown="found from the topics",
    )
    log: tuple[str, ...] | None = option(
        "URL",
        log_urls,
        None,
        _WHAT,
        "Tango: the log that takes the records of the source, and that `mama tango-source` serves: "
        "`nats://host:4222/STREAM`, `mlp://host:9999/stream`. Options of the connection are those of the log.",
        shown="",
        scope=Scope(bridges=("tango",)),
    )
    create_stream: bool = option(
        "boolean",
        boolean,
        False,
        _WHAT,
        "Create a missing stream: file storage, duplicate window of twice `retryDeadline`, fast ingest allowed. "
        "(A Malamute broker makes streams when they are first written to; its configuration says which are durable.)",
    )
    streams: StreamRange | None = option(
        "names", stream_range, None, _WHAT,
        "Spread the topics over the streams of a set ([how](../how-to/spread-over-streams.md)), `orders-{0..7}`: those "
        "of a topic are in one, in their order. `createStream` makes what is missing. Instead of `stream`.", scope=NATS,
    )  # fmt: skip
    grow_streams: bool = option(
        "boolean", boolean, False, _WHAT,
        "The streams of `streams` may be a smaller set, which becomes this one: topics change streams.", scope=NATS,
    )  # fmt: skip
    ignore_unknown_columns: bool = option(
        "boolean", boolean, False, _WHAT, "Leave out columns that no rule uses instead of refusing them."
    )

    pack: str = option(
        "`off`, `lines`, `arrow`",
        one_of("off", "lines", "arrow"),
        "off",
        _WHAT,
        "Send rows of one topic together in one message, in their order ([format](packed-messages.md)). `lines`: "
        "values joined by line feeds. `arrow`: an Arrow stream of value, headers and id, or, without a column `value`, "
        "of the other columns as they are. A flight is then a message of several rows.",
    )
    pack_max_bytes: int = option(
        "integer",
        integer(64, 1 << 30),
        64 << 10,
        _WHAT,
        "Payload bytes of a packed message, at most what the middleware takes. A larger row travels alone.",
    )
    pack_max_rows: int = option("integer", integer(1, 1_000_000), 1_000, _WHAT, "Rows of a packed message.")
    pack_compression: str = option(
        "`none`, `lz4`, `zstd`",
        one_of("none", "lz4", "zstd"),
        "none",
        _WHAT,
        "Compress packed messages: `lines` as a whole, of `arrow` each buffer. A pack that would not become smaller is "
        "sent as it is. Readers need a release that knows version 2 of the format. Ids do not depend on it.",
    )
    pack_compression_level: int | None = option(
        "integer", integer(1, 22), None, _WHAT, "Level of `packCompression`: `lz4` 1 to 12, `zstd` 1 to 22.",
        shown="of the codec: 1",
    )  # fmt: skip

    ack_mode: str = option(
        "`auto`, `message`, `batch`, `none`",
        one_of("auto", "message", "batch", "none"),
        "auto",
        _ACK,
        "`message`: an acknowledgement with sequence and duplicate flag for each row. `batch`: fast ingest, "
        "acknowledged in runs, no sequences. `none`: fire and forget. `auto`: `batch` where `dedup` is off and "
        "stream and server allow it (and while they do), else `message`. `batch` together with ids is refused on "
        "replicated streams, where the server may count as stored what is only proposed.",
    )
    dedup: bool = option(
        "boolean",
        boolean,
        True,
        _ACK,
        "Send ids that the broker deduplicates on, so that a resend stores nothing twice.",
    )
    id_column: str | None = option(
        "column",
        string,
        None,
        _ACK,
        "Column with the id of each message, string or integer, in place of default ids. Rows of a write that share an "
        "id are one message to the broker, which keeps the first. Empty: no column. Until the next release a string "
        "column `id` is taken without this option, with a warning.",
        shown="",
    )
    on_duplicate_id: str | None = option(
        "`fail`, `warn`",
        one_of("fail", "warn"),
        None,
        _ACK,
        "A row with an id that its task has sent before (a doubled id): `fail`: the row fails and is not sent, and "
        "`onError` says what follows. `warn`: it is sent, and the broker may drop it. Both count it, and the flight "
        "log says so in `info`.",
        shown="`fail` with `idColumn`, else `warn`",
    )
    id_prefix: str | None = option(
        "text",
        text,
        None,
        _ACK,
        "First part of default ids. Give a constant one to make ids stable over re-runs of a batch job.",
        shown="query id or run id",
    )
    txn_app_id: str | None = option(
        "text",
        text,
        None,
        _ACK,
        "With `txnVersion`: identity of a batch write that may be repeated (Delta's names).",
        scope=BATCHES,
    )
    txn_version: int | None = option(
        "integer",
        integer(0, 2**63 - 1),
        None,
        _ACK,
        "With `txnAppId`: rises with each batch, e.g. the batch id.",
        scope=BATCHES,
    )

    exactly_once: bool = option(
        "boolean",
        boolean,
        False,
        _ACK,
        "Store each row of a batch once, however long after an outage it is repeated: a repetition first reads from "
        "the stream which rows are there, and publishes the others "
        "([what that promises and costs](../explanation/delivery.md#exactly-once)). Needs `dedup=true`; batch writes "
        "are recognised by `txnAppId` and `txnVersion`.",
        scope=STORED,
    )
    on_retention: str = option(
        "`fail`, `publish`",
        one_of("fail", "publish"),
        "fail",
        _ACK,
        "With `exactlyOnce`, when messages of the batch may have been removed before they were read back: fail, or "
        "publish all rows that are not found, of which some may then be stored twice.",
        scope=STORED,
    )
    batches_stream: str = option(
        "text",
        single_token,
        "MAMA_BATCHES",
        _ACK,
        "With `exactlyOnce`: the stream that keeps where each batch began. Made when it is missing; over Malamute the "
        "broker's configuration must make it durable.",
        shown="`MAMA_BATCHES`",
        scope=STORED,
    )
    wait_for_subscribers: float = option(
        "duration", duration_or_none, 5.0, _READERS,
        "A task waits so long for readers of its topics before its first messages: what is sent earlier reaches "
        "nobody. `0` = not at all.",
        shown="5s", scope=OPENMAMA,
    )  # fmt: skip
    require_subscribers: bool = option(
        "boolean", boolean, False, _READERS,
        "Rows of topics that nobody reads then: fail with `NO_SUBSCRIBERS` (`true`), or are `published`, with "
        "`ack_level` = `none`.",
        scope=OPENMAMA,
    )  # fmt: skip
    mama_fields: tuple[tuple[str, int | None, str | None], ...] = option(
        "fields", mama_fields, (), _READERS,
        "Numbers and types of fields: `name[:fid[:type]]`, separated by commas, as `wBidPrice:109:PRICE(2), "
        "wText::STRING`. Each other column is a field of its name, without a number and of the type of the column.",
        shown="", scope=OPENMAMA,
    )  # fmt: skip
    mama_dictionary: str | None = option(
        "path", file_path, None, _READERS,
        "Data dictionary, lines `fid|name|type`, readable on driver and executors: numbers and types of the fields "
        "that `mamaFields` does not name.",
        scope=OPENMAMA,
    )  # fmt: skip
    mama_numbers: bool = option(
        "boolean", boolean, False, _READERS,
        "Number the messages of each topic (`MdSeqNum`, and a `MamaSenderId` of the task), so that readers notice "
        "gaps. Readers take one numbering a topic: the DataFrame must have one partition (`coalesce(1)`).",
        scope=OPENMAMA,
    )  # fmt: skip

    max_in_flight: int = option(
        "integer", integer(1, 1_000_000), 4096, _WINDOW, "Messages of a partition that wait for an acknowledgement."
    )
    refill_allowed_at: int | None = option(
        "integer",
        integer(0, 1_000_000),
        None,
        _WINDOW,
        "A full window lets in more when this many or fewer are left.",
        shown="half of `maxInFlight`",
    )
    wait_timeout: float = option(
        "duration", duration, 5.0, _WINDOW, "Wait for the acknowledgement of each send.", shown="5s"
    )
    poll_time: float = option(
        "duration", duration, 0.1, _WINDOW, "Longest wait of the publisher's loop before it looks again.", shown="100ms"
    )
    hold_pause_time: float = option(
        "duration", duration, 0.1, _WINDOW, "Longest pause while the window is full; settlements end it.", shown="100ms"
    )
    retry_attempts: int | None = option(
        "integer", integer(0, 1_000_000), None, _WINDOW, "Resends of one message; 0 = never.", shown="unlimited"
    )
    retry_backoff: float = option(
        "duration", duration, 0.25, _WINDOW, "Wait before the first resend; doubles from there.", shown="250ms"
    )
    retry_max_backoff: float = option("duration", duration, 3.0, _WINDOW, "Longest wait between resends.", shown="3s")
    retry_deadline: float = option(
        "duration", duration, 30.0, _WINDOW, "No resend later than this after the first send.", shown="30s"
    )
    on_uncertain: str = option(
        "`resend`, `report`",
        one_of("resend", "report"),
        "resend",
        _WINDOW,
        "What to do with a message whose acknowledgement is lost when `dedup` is off: send it again (it may be stored "
        "twice), or settle it as `timeout`.",
    )
    on_unavailable: str = option(
        "`fail`, `wait`",
        one_of("fail", "wait"),
        "fail",
        _WINDOW,
        "What to do when the middleware is away, or answers but stores nothing (its disk is full). `fail`: nothing was "
        "acknowledged for `retryDeadline`, so the task fails, and Spark tries it again. `wait`: keep the messages and "
        "warn every 30 seconds until they are stored, however long it takes; `retryDeadline` counts only while "
        "messages are stored.",
    )
    order: str = option(
        "`none`, `partition`",
        one_of("none", "partition"),
        "none",
        _WINDOW,
        "`partition`: rows of a partition are stored in their order, also over resends.",
    )
    max_rate_per_partition: float | None = option(
        "number", rate, None, _WINDOW, "Messages a second of each partition.", shown="unlimited"
    )

    on_error: str = option(
        "`fail`, `deadletter`, `log`",
        one_of("fail", "deadletter", "log"),
        "fail",
        _ERRORS,
        "When rows failed for good: fail the write when everything else is published, send them to the dead letters, "
        "or leave them to the flight log.",
    )
    error_tolerance: str = option(
        "`data`, `all`",
        one_of("data", "all"),
        "data",
        _ERRORS,
        "What `deadletter` and `log` cover: what the row itself is guilty of, or outages too.",
    )
    dead_letter_topic: str | None = option(
        "text", text, None, _ERRORS, "Topic for failed rows, with `Mama-Error-*` headers and id + `-dlq`."
    )
    dead_letter_table: str | None = option(
        "path",
        table_path,
        None,
        _ERRORS,
        "Delta table for failed rows, in full. A path or URL as for `flightLog`, and another one.",
    )

    flight_log: str | None = option(
        "path",
        table_path,
        None,
        _LOG,
        "Delta table that tells what became of every row: a folder that the driver and all executors see, or a URL of "
        "an object store. A relative path begins where the driver was started.",
        shown="off, with a warning",
    )
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`",
        one_of("all", "outcomes", "errors"),
        "outcomes",
        _LOG,
        "`all`: also `published` events. `outcomes`: one terminal event a row. `errors`: only what was not acked.",
    )
    flight_log_columns: tuple[str, ...] = option(
        "columns",
        names("column"),
        (),
        _LOG,
        "Columns of the DataFrame that go to the flight log, to join with the source.",
        shown="",
    )
    flight_log_payload: str = option(
        "`none`, `failed`, `all`",
        one_of("none", "failed", "all"),
        "failed",
        _LOG,
        "Whose payload and headers the flight log keeps, to publish them again.",
    )
    flight_log_compact_every: int = option(
        "integer",
        integer(0),
        0,
        _LOG,
        "Merge the small files of the flight log in the commit of every so many micro-batches. A failure of that is "
        "logged and fails nothing. 0: leave it to `mama flights maintain`.",
        scope=STREAMS,
    )

    announce: bool = option(
        "boolean", boolean, False, DISCOVERY, "Announce the write as a source, and its partitions as publishers."
    )
    source_name: str | None = option(
        "text", text, None, DISCOVERY, "Name of the source.", shown="query or application name"
    )
    source_ttl: float = option(
        "duration",
        duration,
        30.0,
        DISCOVERY,
        "A source that is not heard of for half as long turns SUSPECT, and OFFLINE after all of it. Must exceed the "
        "trigger interval of a stream.",
        shown="30s",
    )
    topic_events: str = option(
        "`topic`, `publisher`, `off`",
        one_of("topic", "publisher", "off"),
        "topic",
        DISCOVERY,
        "Which events of publishers go to the flight log (and to discovery with `announce`): of each topic too, only "
        "of the publishers, or none.",
    )
    metrics: str = option(
        "`off`, `otel`, `module:function`",
        metrics_setup,
        "off",
        _LOG,
        "Whether executors export metrics by OpenTelemetry (extra `otel`): by the meter provider of the process, or by "
        "the one that the function returns, which is called once in each process.",
    )
    storage: tuple[tuple[str, str], ...] = field(default=())

    @property
    def window(self) -> WindowConfig:
        """What the options say of the window, whatever the bridge can do (:meth:`WindowConfig.for_bridge`).

        :raises ConfigError: they do not go together
        """
        retry = None
        if self.retry_attempts != 0:
            retry = RetryPolicy.doubling(
                self.retry_backoff, self.retry_max_backoff, self.retry_deadline, self.retry_attempts
            )
        refill = self.max_in_flight // 2 if self.refill_allowed_at is None else self.refill_allowed_at
        return WindowConfig(
            max_in_flight=self.max_in_flight,
            refill_allowed_at=refill,
            wait_timeout=self.wait_timeout,
            retry=retry,
            resend_uncertain=self.on_uncertain == "resend",
            ordered=self.order == "partition",
        )

    @property
    def storage_options(self) -> dict[str, str]:
        """What ``storage.*`` says, passed to delta-rs as it is."""
        return dict(self.storage)

    def with_tables_below(self, folder: str) -> Self:
        """The same options with absolute paths of the tables, so that they name the same place in every process.

        :param folder: where relative paths begin
        :raises OptionError: one table lies in the other
        """
        log, letters = (
            None if path is None else absolute_path(path, folder) for path in (self.flight_log, self.dead_letter_table)
        )
        if log is not None and letters is not None:
            require(
                not is_inside(log, letters) and not is_inside(letters, log),
                f"options flightLog and deadLetterTable must name two folders, neither in the other, got {log} and "
                f"{letters}: VACUUM of the outer table would delete the files of the inner one",
            )
        return replace(self, flight_log=log, dead_letter_table=letters)

    @property
    def bridges(self) -> frozenset[str]:
        """That of the log, too: options of the connection are those of the log."""
        logs = () if self.log is None else (SCHEMES[urlsplit(self.log[0]).scheme],)
        return frozenset((self.bridge_name, *logs))

    def at_log(self) -> Self:
        """The same options for the bridge of ``log``."""
        servers, stream = split_stream(self.log or ())
        return replace(self, url=servers, stream=stream, bridge=None, log=None)

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        self._check_log()
        self._check_openmama()
        self._check_retries()
        self._check_ids()
        self._check_exactly_once()
        self._check_failed_rows(given)
        self._check_order()
        self._check_pack(given)
        require(self.topic is None or not any(c.isspace() for c in self.topic), "option topic must not contain blanks")

    def _check_retries(self) -> None:
        try:
            _ = self.window
        except ConfigError as e:
            raise OptionError(f"option {e}") from e
        require(
            self.retry_backoff <= self.retry_max_backoff, "option retryBackoff must not be longer than retryMaxBackoff"
        )
        if self.on_unavailable == "wait":
            require(
                self.retry_attempts is None,
                "option onUnavailable=wait sends again until messages are stored: leave out retryAttempts",
            )
            require(
                self.retry_deadline >= 2 * self.wait_timeout,
                "option onUnavailable=wait needs a retryDeadline of at least twice waitTimeout, so that an outage is "
                "noticed before messages fail",
            )
            require(
                self.error_tolerance == "data",
                "options onUnavailable=wait and errorTolerance=all exclude each other: no row fails in an outage",
            )

    def _check_ids(self) -> None:
        require(self.streams is None or self.stream is None, "options stream and streams exclude each other")
        require(
            self.id_column != "" or self.on_duplicate_id is None,
            "option onDuplicateId needs a column of ids, and idColumn is empty: there is none",
        )
        require((self.txn_app_id is None) == (self.txn_version is None), "options txnAppId and txnVersion go together")

    def _check_exactly_once(self) -> None:
        if not self.exactly_once:
            return
        require(
            self.dedup, "option exactlyOnce needs dedup=true: stored rows are recognised by the ids of their messages"
        )
        require(
            self.ack_mode != "none",
            "option exactlyOnce needs acknowledgements, and ackMode=none has none: leave it out",
        )

    def _check_failed_rows(self, given: Collection[str]) -> None:
        dead = [camel(n) for n in ("dead_letter_topic", "dead_letter_table") if getattr(self, n) is not None]
        if self.on_error == "deadletter":
            require(bool(dead), "option onError=deadletter needs deadLetterTopic or deadLetterTable")
        else:
            require(not dead, f"option {''.join(dead[:1])} needs onError=deadletter, else nothing would ever go there")
        if self.flight_log is None:
            require(
                self.on_error != "log", "option onError=log needs flightLog: failed rows would vanish without a trace"
            )
            refuse_alone(given, "flight_log_", "flightLog")

    def _check_order(self) -> None:
        if self.order == "none":
            return
        require(self.ack_mode != "none", "option order=partition needs acknowledgements, and ackMode=none has none")
        require(
            self.ack_mode != "batch" or self.dedup,
            "option order=partition with ackMode=batch needs dedup=true: after a lost batch only ids make resends safe",
        )
        require(
            self.pack == "off",
            "option order=partition does not go with pack: rows of one topic are gathered, so that topics overtake "
            "each other",
        )

    def _check_pack(self, given: Collection[str]) -> None:
        if self.pack == "off":
            refuse_alone(given, "pack_", "pack=lines or pack=arrow")
        level, most = self.pack_compression_level, {"none": 0, "lz4": 12, "zstd": 22}[self.pack_compression]
        require(
            level is None or most > 0, "option packCompressionLevel needs packCompression=lz4 or packCompression=zstd"
        )
        require(
            level is None or level <= most,
            f"option packCompressionLevel={level}: packCompression={self.pack_compression} has levels 1 to {most}",
        )

    def _check_needs(self, stated: Collection[str]) -> None:
        super()._check_needs(stated)
        kept = self.flight_log is not None or self.dead_letter_table is not None
        for orphans, needed, there in (
            (("source_name", "source_ttl", *_PLACES), "announce=true", self.announce),
            (("topic_events",), "flightLog or announce=true", self.announce or self.flight_log is not None),
            (("on_retention", "batches_stream"), "exactlyOnce=true", self.exactly_once),
            (("grow_streams",), "streams", self.streams is not None),
            (("error_tolerance",), "onError=deadletter or onError=log", self.on_error != "fail"),
            (("retry_backoff", "retry_max_backoff"), "retryAttempts above 0", self.retry_attempts != 0),
            (("storage",), "flightLog or deadLetterTable", kept),
        ):
            for name in orphans:
                shown = "storage.*" if name == "storage" else camel(name)
                require(there or name not in stated, f"option {shown} has no effect without {needed}")

    def _check_log(self) -> None:
        if self.bridge_name != "tango":
            require(self.log is None, "option log is for Tango (url=tango://source): others publish to the url itself")
            return
        require(
            self.log is not None,
            "url=tango://source needs option log: where the records are stored, such as nats://host:4222/STREAM",
        )
        parts = urlsplit(self.url[0])
        named = len(self.url) == 1 and parts.netloc and "@" not in parts.netloc and not parts.path.strip("/")
        require(bool(named), "option url must name one event source and nothing else: tango://lab")
        for name in ("topic", "stream"):
            require(
                getattr(self, name) is None,
                f"option {name} does not go with Tango: device, attribute and option log say where rows go",
            )
        require(self.pack == "off", "option pack does not go with Tango: each row is an event of its own")
        require(self.ack_mode != "none", "option ackMode=none does not go with Tango: a row counts when it is stored")

    def _check_openmama(self) -> None:
        if self.bridge_name != "openmama":
            return
        for name in ("stream", "dead_letter_topic"):
            require(getattr(self, name) is None, f"option {camel(name)} does not go with OpenMAMA: it has no streams")
        require(self.pack == "off", "option pack does not go with OpenMAMA: its programs read one message a row")
        require(self.on_unavailable == "fail", "option onUnavailable=wait does not go with OpenMAMA: it stores nothing")
        require(
            not (self.require_subscribers and self.ack_mode == "none"),
            "option requireSubscribers needs acknowledgements, and ackMode=none has none",
        )

"""The options of ``mamasub`` and ``mamadiscovery``. Where Kafka's source has an option of the same meaning, its name is
taken. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from .declare import camel, option, require
from .scopes import BATCHES, MALAMUTE, NATS, STREAMS, Scope
from .stream_names import stream_patterns
from .times import NOW, duration, instant
from .transport import TransportOptions
from .values import Offsets, boolean, field_columns, integer, metrics_setup, offsets, one_of, text, topic_patterns

_WHAT, _HOW = "What is read", "How it is read"
_LOSS = (
    "Fail when records that were not read yet are gone from the middleware: deleted, dropped by a limit, or with their "
    "stream. With `false`, what is left is read, and what is not is told:"
)


@dataclass(frozen=True, repr=False)
class ReadOptions(TransportOptions):
    """What both sources take; durations are seconds."""

    max_offsets_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "Most records that a micro-batch takes. `mamasub` counts those that match `topics` or `pattern`, if the "
        "server can tell: NATS, `mama broker`. Else all records of the stream count.", shown="unlimited", scope=STREAMS,
    )  # fmt: skip
    fail_on_data_loss: bool = option("boolean", boolean, True, _HOW, f"{_LOSS} `mamasub` writes it to the log.")
    tango: bool = option(
        "boolean", boolean, False, _WHAT,
        "The stream is what a recorder of Tango events writes (`mama record`). `mamasub` then has a column `tango`, a "
        "struct of what each record holds; to `mamadiscovery` the devices are sources.",
    )  # fmt: skip
    omnm: bool = option(
        "boolean", boolean, False, _WHAT,
        "The payloads are messages of OpenMAMA (OMNM), or the stream is what a recorder of such messages writes (`mama "
        "record`). `mamasub` then has a column `mama`, a struct with a map of the fields, or the columns of `fields`; "
        "to `mamadiscovery` the peers of the naming service are sources.",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 30.0, _HOW,
        "Wait for the middleware before a read fails (and Spark tries again).", shown="30s",
    )  # fmt: skip
    metrics: str = option(
        "`off`, `otel`, `module:function`", metrics_setup, "off", _HOW,
        "Whether executors export metrics by OpenTelemetry (extra `otel`), as the option of `mamapub`.",
    )  # fmt: skip

    @property
    def decodes(self) -> str:
        """The option that says what the payloads are, ``tango`` or ``omnm``; empty: nothing says."""
        return "tango" if self.tango else "omnm" if self.omnm else ""

    @property
    def recorded(self) -> str | None:
        """The middleware that :attr:`decodes` is about."""
        return {"tango": "tango", "omnm": "openmama"}.get(self.decodes)

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        require(
            not (self.tango and self.omnm), "options tango and omnm exclude each other: which one wrote the stream?"
        )


@dataclass(frozen=True, repr=False)
class SubscribeOptions(ReadOptions, format_name="mamasub"):
    """The options of ``mamasub``."""

    topics: tuple[str, ...] = option(
        "topics", topic_patterns, (), _WHAT,
        "Topics to read, separated by commas, with wildcards: `*` one part, `>` all that follow. Needed, or `stream`. "
        "A stream that appears while a query runs and holds one of them is read from its beginning. Malamute: a "
        "durable stream takes every subject, so all of them are read where no `stream` is named.",
        shown="all of `stream`",
    )  # fmt: skip
    bucket: str | None = option(
        "text", text, None, _WHAT,
        "Key-value bucket to read, instead of `stream`: its columns are `key`, `value`, `revision`, `operation`, "
        "`timestamp` and `headers`, and `topics` are patterns of keys. Implies `latestPerTopic`; with "
        "`latestPerTopic=false`, the history that the bucket keeps, in order.", scope=NATS,
    )  # fmt: skip
    latest_per_topic: bool | None = option(
        "boolean", boolean, None, _WHAT,
        "Read the last message of each topic, as of one moment, with a column `operation`. A stream begins with these, "
        "and goes on with what comes after them.", shown="`false`; with `bucket`, `true`", scope=NATS,
    )  # fmt: skip
    include_deleted: bool = option(
        "boolean", boolean, False, _WHAT,
        "With `latestPerTopic`: a topic (or key) whose last message says that it was deleted, purged or has expired is "
        "a row, too. What comes after that, in a stream, always has them.", scope=NATS,
    )  # fmt: skip
    pattern: str | None = option(
        "regular expression", text, None, _WHAT,
        "Malamute: read subjects in which this is found, as READ of the protocol does (RE2 syntax, not anchored: "
        r"`^temp\.` is those that begin so). Instead of `topics`.", scope=MALAMUTE,
    )  # fmt: skip
    stream: str | None = option(
        "text", text, None, _WHAT,
        "Stream to read: of JetStream, or a durable one of Malamute.",
        shown="found from the topics; Malamute: the one of the `url`",
    )  # fmt: skip
    streams: tuple[str, ...] = option(
        "names", stream_patterns, (), _WHAT,
        "Streams to read as one source, separated by commas; `{0..7}` stands for numbers, `*` for anything: "
        "`orders-{0..7}`, `orders-*`. Those that exist are read, and one that appears while a query runs is read from "
        "its beginning. With `topics`, only these. Instead of `stream`.", scope=NATS,
    )  # fmt: skip
    starting_offsets: Offsets = option(
        "`earliest`, `latest`, `now`, time, JSON", offsets("earliest", "latest", times=True), "earliest", _WHAT,
        "Where a new query begins. `latest`: with what comes after the first micro-batch was planned, which on a busy "
        "machine is tens of seconds after `start()`; `now`: with the first record stored since `load()`, by the clock "
        "of the driver; a time such as `2026-01-31T12:00:00Z` (UTC where it names no zone): with the first record "
        'stored at or after it. JSON names the first sequence of each stream: `{"ORDERS": 17}`; -1 = latest, '
        "-2 = earliest. A checkpoint wins.",
    )  # fmt: skip
    starting_timestamp: int | str | None = option(
        "time", instant, None, _WHAT,
        "Instead of `startingOffsets`: begin with the first record stored at or after this time (UTC where it "
        "names no zone), or `now` as there. A time that is yet to come is `latest`. A checkpoint wins.",
    )  # fmt: skip
    ending_offsets: Offsets = option(
        "`latest`, `now`, time, JSON", offsets("latest", times=True), "latest", _WHAT,
        "Where the read ends: with what there is when it is planned (`latest`), or was at `load()` (`now`), or before "
        "the first record stored at or after a time (UTC where it names no zone); in JSON, the first sequence not to "
        "read.", scope=BATCHES,
    )  # fmt: skip
    ending_timestamp: int | str | None = option(
        "time", instant, None, _WHAT,
        "Instead of `endingOffsets`: end before the first record stored at or after this time (UTC where it names no "
        "zone), or `now` as there.", scope=BATCHES,
    )  # fmt: skip
    min_offsets_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "A micro-batch waits for that many records, counted as for `maxOffsetsPerTrigger`, or for `maxTriggerDelay`. "
        "The first one, and those of `availableNow`, do not wait.", shown="no wait", scope=STREAMS,
    )  # fmt: skip
    max_trigger_delay: float = option(
        "duration", duration, 900.0, _HOW,
        "With `minOffsetsPerTrigger`: longest wait since the micro-batch before.", shown="15m", scope=STREAMS,
    )  # fmt: skip
    max_rows_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "About how many rows a micro-batch takes, where messages are packed: the first messages of the batch tell how "
        "many rows a message has. Counts as `maxOffsetsPerTrigger` does. At least one message of each stream that has "
        "its turn.", shown="unlimited", scope=STREAMS,
    )  # fmt: skip
    min_partitions: int | None = option(
        "integer", integer(1, 10_000), None, _HOW,
        "Tasks that a read is split into, at least, by ranges of sequences. Left out: as many as `parallelism` says, "
        "but no more than one for 10,000 rows and no fewer than one for 250,000.", shown="`parallelism`",
    )  # fmt: skip
    parallelism: int | None = option(
        "integer", integer(1, 10_000), None, _HOW,
        "Tasks that the cluster runs at once. Left out: `spark.sparkContext.defaultParallelism` of the session that "
        "was given to `mama_spark.register(spark)` last, because Spark does not tell a Python data source; without "
        "that call, the cores of the driver's machine.", shown="as registered",
    )  # fmt: skip
    fields: tuple[tuple[str, str], ...] = option(
        "columns", field_columns, (), _WHAT,
        "With `omnm`: fields of the messages that become columns: `wBidPrice double, wAskSize int`. Types are boolean, "
        "tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, timestamp, and array<...> of "
        "these; without a type it is that of the `dictionary`. A value that its column cannot hold is null, with the "
        "reason in `mama.reason`.", shown="all, in the map `mama.fields`",
    )  # fmt: skip
    dictionary: str | None = option(
        "path or `feed`", text, None, _WHAT,
        "With `fields`: the data dictionary, which has their types and numbers: a file on the driver with lines "
        "`fid|name|type`, or `feed`: the one that the recorder fetched, from the stream. Fields are then found by "
        "number, too.",
    )  # fmt: skip
    gc_freeze: bool = option("boolean", boolean, False, _HOW, "As the option of `mamapub`.", scope=STREAMS)
    unpack: bool = option(
        "boolean", boolean, True, _HOW,
        "Packed messages become as many rows as they carry, with `pack_index`. With `false` each is one row.",
    )  # fmt: skip
    decompress: bool = option(
        "boolean", boolean, False, _HOW,
        "Decompress payloads whose header `Content-Encoding` (or `content-encoding`) is `gzip`, `deflate`, `zstd`, "
        "`br`, `lz4` or `bzip2`, before they are unpacked; the rows lack that header then. What is corrupt, of another "
        "encoding, or too large is a row with its bytes in `value` and the reason in `pack_error`, or fails, as with "
        "packs: `failOnCorrupt`, `mode`.",
    )  # fmt: skip
    max_decompressed_bytes: int = option(
        "integer", integer(1, 1 << 30), 64 << 20, _HOW, "With `decompress`: most bytes of one decompressed payload."
    )
    trace_context: str = option(
        "`off`, `column`, `links`", one_of("off", "column", "links"), "off", _HOW,
        "What becomes of the header `traceparent` (W3C trace context): `column`: a column of that name, null without a "
        "valid one; `links`: each task is a span that links to the traces of its messages, 128 at most, by the tracer "
        "provider of the executor (extra `otel`). Rows of a packed message share its header.",
    )  # fmt: skip
    include_headers: bool = option("boolean", boolean, True, _HOW, "Fill the column `headers`.")
    fail_on_corrupt: bool = option(
        "boolean", boolean, False, _HOW,
        "Fail at a packed message that cannot be read; with `tango` or `omnm`, at a record or message that is none. "
        "With `false` it is a row with its bytes in `value` and the reason in `pack_error` (or `tango.reason`, "
        "`mama.reason`). Where `.schema()` names columns of packs, `mode` decides.",
    )  # fmt: skip
    mode: str | None = option(
        "`FAILFAST`, `PERMISSIVE`, `DROPMALFORMED`", one_of("failfast", "permissive", "dropmalformed"), None, _HOW,
        "What happens to a message that does not fit `.schema()`, where that names columns of packs: it has none of "
        "them, or one of another type, or cannot be read, or is no pack while `value` is not named. The words are "
        "those of Spark's readers of JSON and CSV: fail and show both schemas; or one row in which these columns are "
        "null, with the bytes in `value` and the reason in `pack_error`; or no row. The executor logs the counts.",
        shown="`FAILFAST`; `PERMISSIVE` if the schema names `pack_error`",
    )  # fmt: skip
    progress_consumer: str | None = option(
        "text", text, None, _HOW,
        "Durable consumer that shows at the broker how far the query has come. Telemetry only: the checkpoint decides.",
        scope=Scope(streaming=True, bridges=("nats",)),
    )  # fmt: skip

    @property
    def current(self) -> bool:
        """Whether the last message of each topic is read."""
        return self.bucket is not None if self.latest_per_topic is None else self.latest_per_topic

    @property
    def starting_time(self) -> int | str | None:
        """The time at which a query begins, in microseconds since the epoch, or ``now``; None: no time says where."""
        return _time(self.starting_offsets, self.starting_timestamp)

    @property
    def ending_time(self) -> int | str | None:
        """As :attr:`starting_time`, of the end."""
        return _time(self.ending_offsets, self.ending_timestamp)

    def loaded_at(self, now: int) -> Self:
        """The same options with ``now`` in place of that word.

        :param now: microseconds since the epoch
        """
        found: dict[str, Any] = {}
        if self.starting_time == NOW:
            found |= {"starting_offsets": now, "starting_timestamp": None}
        if self.ending_time == NOW:
            found |= {"ending_offsets": now, "ending_timestamp": None}
        return replace(self, **found)

    def sized_for(self, cores: int | None) -> Self:
        """The same options with ``parallelism`` where it was left out.

        :param cores: None = not known
        """
        return self if self.parallelism is not None else replace(self, parallelism=cores)

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        by_pattern = self.middleware.patterns
        require(self.pattern is None or by_pattern, "option pattern is for Malamute; others take topics with wildcards")
        for one, other in (
            *(("topics", "pattern"), ("stream", "streams"), ("pattern", "streams"), ("bucket", "stream")),
            *(("bucket", "streams"), ("bucket", "pattern"), ("bucket", "decompress")),
        ):
            both = getattr(self, one) and getattr(self, other)
            require(not both, f"options {one} and {other} exclude each other")
        require(
            self.bucket is None or self.middleware.key_value is not None,
            f"option bucket: {self.middleware.title} has no key-value buckets; name a stream, or topics",
        )
        named = bool(self.stream or self.streams or self.bucket) or (by_pattern and _has_path(self.url))
        require(
            self.pattern is None or named, "option pattern needs a stream: option stream, or mlp://host:9999/stream"
        )
        require(bool(self.topics) or named, "option topics (or stream) is needed: what shall be read?")
        for which in ("starting", "ending"):
            require(
                not {f"{which}_offsets", f"{which}_timestamp"} <= set(given),
                f"options {which}Offsets and {which}Timestamp exclude each other",
            )
            require(
                not self.current or not {f"{which}_offsets", f"{which}_timestamp"} & set(given),
                f"options {which}Offsets and {which}Timestamp have no effect with latestPerTopic, which reads what is "
                "there now; with a bucket, latestPerTopic=false reads its history",
            )
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        require(
            least is None or most is None or least <= most,
            f"option minOffsetsPerTrigger ({least}) must be at most maxOffsetsPerTrigger ({most})",
        )
        require(
            self.mode in (None, "failfast") or not self.fail_on_corrupt,
            "options mode and failOnCorrupt=true exclude each other: leave failOnCorrupt out",
        )
        require(
            not (self.decompress and self.decodes),
            f"option decompress has no effect with {self.decodes}=true: records of it are not",
        )
        require(
            self.mode is None or (self.unpack and not self.decodes),
            "option mode has no effect here: it is for packed messages, and none are unpacked",
        )

    def _check_needs(self, stated: Collection[str]) -> None:
        super()._check_needs(stated)
        packed = "none is packed" if self.tango else "packs of the recorder are unpacked"
        for name, has_effect, why_not in (
            ("fail_on_corrupt", self.unpack or self.decodes or self.decompress,
             "with unpack=false: no message is looked into"),
            ("include_deleted", self.current, "without latestPerTopic or bucket"),
            ("unpack", self.bucket is None, "with bucket: values are as they are"),
            ("max_decompressed_bytes", self.decompress, "without decompress=true"),
            ("max_trigger_delay", self.min_offsets_per_trigger is not None, "without minOffsetsPerTrigger"),
            ("parallelism", self.min_partitions is None, "with minPartitions: leave one of them out"),
            ("unpack", not self.decodes, f"with {self.decodes}=true: {packed}"),
        ):  # fmt: skip
            require(name not in stated or bool(has_effect), f"option {camel(name)} has no effect {why_not}")
        require(self.omnm or not self.fields, "option fields is for messages of OpenMAMA: omnm=true")
        require(self.dictionary is None or bool(self.fields), "option dictionary has no effect without fields")


def _has_path(urls: tuple[str, ...]) -> bool:
    """Whether one of them names a stream."""
    return any(urlsplit(url).path.strip("/") for url in urls)


def _time(offset: Offsets, timestamp: int | str | None) -> int | str | None:
    return timestamp if timestamp is not None else offset if isinstance(offset, int) or offset == NOW else None


@dataclass(frozen=True, repr=False)
class DiscoveryOptions(ReadOptions, format_name="mamadiscovery"):
    """The options of ``mamadiscovery``."""

    starting_offsets: str | tuple[tuple[str, int], ...] = option(
        "`image`, `earliest`, `latest`, JSON", offsets("image", "earliest", "latest"), "image", _WHAT,
        "Where a new query begins: with the sources there are, with the oldest change that is kept, or with the next "
        'change. JSON: `{"MAMA_EVENTS": 17}`. A checkpoint wins.', scope=STREAMS,
    )  # fmt: skip
    fail_on_data_loss: bool = option("boolean", boolean, True, _HOW, f"{_LOSS} in a row of kind `gap`.", scope=STREAMS)
    stream: str | None = option(
        "text", text, None, _WHAT,
        "With `tango` or `omnm`: the stream that the recorder writes.", shown="the one of the `url`",
    )  # fmt: skip
    advisories: bool = option(
        "boolean", boolean, True, _WHAT,
        "Rows for readers that come and go at the broker, from its advisories.",
        scope=Scope(streaming=True, bridges=("nats",)),
    )  # fmt: skip

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        by = self.decodes
        require(self.stream is None or bool(by), "option stream is for what a recorder wrote: tango=true, omnm=true")
        named = self.stream is not None or _has_path(self.url)
        require(not by or named, f"option {by} needs the option stream: what does the recorder write?")

    def _check_needs(self, stated: Collection[str]) -> None:
        super()._check_needs(stated)
        for name in ("advisories", "advisories_stream", "discovery_topic", "events_stream", "sources_stream"):
            require(
                not self.decodes or name not in stated,
                f"option {camel(name)} has no effect with tango=true or omnm=true, which read what a recorder wrote",
            )

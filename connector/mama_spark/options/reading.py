"""The options of ``mamasub`` and ``mamadiscovery``. Where Kafka's source has an option of the same meaning, its name is
taken. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from .declare import camel, option, require
from .scopes import BATCHES, MALAMUTE, NATS, STORED, STREAMS, Scope
from .stream_names import stream_patterns
from .times import NOW, duration, instant
from .transport import TransportOptions
from .values import Offsets, boolean, field_columns, integer, metrics_setup, offsets, one_of, text, topic_patterns

_WHAT, _HOW = "What is read", "How it is read"


@dataclass(frozen=True, repr=False)
class ReadOptions(TransportOptions):
    """Options of both sources; durations are seconds."""

    max_offsets_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "Most records of a micro-batch; over NATS and `mama broker`, `mamasub` counts those that match.",
        shown="unlimited", scope=STREAMS,
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        "boolean", boolean, True, _HOW,
        "Fail when unread records were deleted (perhaps with their stream) or dropped by a limit. `false`: read the "
        "others; the loss is logged.",
    )  # fmt: skip
    tango: bool = option(
        "boolean", boolean, False, _WHAT,
        "The stream is of a recorder of Tango events: adds a column `tango`; devices are sources.",
    )  # fmt: skip
    omnm: bool = option(
        "boolean", boolean, False, _WHAT,
        "Payloads are OpenMAMA messages, or records of them: adds a column `mama`, or those of `fields`; peers are "
        "sources.",
    )  # fmt: skip
    wait_timeout: float = option(
        "duration", duration, 30.0, _HOW,
        "Longest wait for the middleware before a read fails.", shown="30s",
    )  # fmt: skip
    metrics: str = option("`off`, `otel`, `module:function`", metrics_setup, "off", _HOW, "As the option of `mamapub`.")

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
    topics: tuple[str, ...] = option(
        "topics", topic_patterns, (), _WHAT,
        "Topics, separated by commas, with wildcards: `*` one part, `>` all that follow. Matching streams that "
        "appear later are read from their beginning.", shown="all of `stream`",
    )  # fmt: skip
    bucket: str | None = option(
        "text", text, None, _WHAT,
        "Key-value bucket, with [its own columns](columns.md#columns-that-mamasub-emits); `topics` are patterns of "
        "keys. `latestPerTopic=false` reads the history.", scope=NATS,
    )  # fmt: skip
    latest_per_topic: bool | None = option(
        "boolean", boolean, None, _WHAT,
        "Read the last message of each topic, with a column `operation`; a stream query goes on from there.",
        shown="`false`; with `bucket`, `true`", scope=STORED,
    )  # fmt: skip
    include_deleted: bool = option(
        "boolean", boolean, False, _WHAT,
        "With `latestPerTopic`: also deleted, purged and expired topics.", scope=STORED,
    )  # fmt: skip
    pattern: str | None = option(
        "regular expression", text, None, _WHAT,
        "Subjects that match (RE2, not anchored): `^temp\\.`.",
        scope=MALAMUTE,
    )  # fmt: skip
    stream: str | None = option(
        "text", text, None, _WHAT,
        "Stream to read.",
        shown="found from the topics; Malamute: that of the `url`",
    )  # fmt: skip
    streams: tuple[str, ...] = option(
        "names", stream_patterns, (), _WHAT,
        "Streams to read as one source, separated by commas: `orders-{0..7}`, `orders-*`.", shown="",
        scope=NATS,
    )  # fmt: skip
    starting_offsets: Offsets = option(
        "`earliest`, `latest`, `now`, time, JSON", offsets("earliest", "latest", times=True), "earliest", _WHAT,
        "[Where a new query begins](../how-to/read-messages.md#where-a-query-begins-and-ends). A time is UTC by "
        'default; JSON: `{"ORDERS": 17}`, -1 latest, -2 earliest.',
    )  # fmt: skip
    starting_timestamp: int | str | None = option(
        "time", instant, None, _WHAT,
        "A time (UTC by default) or `now`, instead of `startingOffsets`; a future one is `latest`.",
    )  # fmt: skip
    ending_offsets: Offsets = option(
        "`latest`, `now`, time, JSON", offsets("latest", times=True), "latest", _WHAT,
        "Where the read ends: at its planning, at `load()`, before a time (UTC by default), before sequences.",
        scope=BATCHES,
    )  # fmt: skip
    ending_timestamp: int | str | None = option(
        "time", instant, None, _WHAT,
        "A time (UTC by default) or `now`, instead of `endingOffsets`.", scope=BATCHES,
    )  # fmt: skip
    min_offsets_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "Each micro-batch after the first waits for this many records, at most `maxTriggerDelay`.",
        shown="no wait", scope=STREAMS,
    )  # fmt: skip
    max_trigger_delay: float = option(
        "duration", duration, 900.0, _HOW,
        "Longest wait for `minOffsetsPerTrigger`.", shown="15m", scope=STREAMS,
    )  # fmt: skip
    max_rows_per_trigger: int | None = option(
        "integer", integer(1), None, _HOW,
        "Most rows of a micro-batch of packed messages, estimated.", shown="unlimited", scope=STREAMS,
    )  # fmt: skip
    min_partitions: int | None = option(
        "integer", integer(1, 10_000), None, _HOW,
        "Least number of tasks; default: fewer below 10,000 rows a task, more above 250,000.",
        shown="`parallelism`",
    )  # fmt: skip
    parallelism: int | None = option(
        "integer", integer(1, 10_000), None, _HOW,
        "Tasks that the cluster runs at once. Default: that of the session given to `mama_spark.register(spark)`, else "
        "the cores of the driver.", shown="as registered",
    )  # fmt: skip
    fields: tuple[tuple[str, str], ...] = option(
        "columns", field_columns, (), _WHAT,
        "With `omnm`: [fields that become columns](../how-to/connect-openmama.md#fields-as-typed-columns), "
        "`wBidPrice double, wAskSize int`; types by default of the `dictionary`.",
        shown="all, in the map `mama.fields`",
    )  # fmt: skip
    dictionary: str | None = option(
        "path or `feed`", text, None, _WHAT,
        "With `fields`: OpenMAMA data dictionary on the driver, or `feed`: the recorded one.",
    )  # fmt: skip
    gc_freeze: bool = option("boolean", boolean, False, _HOW, "As the option of `mamapub`.", scope=STREAMS)
    unpack: bool = option(
        "boolean", boolean, True, _HOW,
        "Unpack packed messages into rows.",
    )  # fmt: skip
    decompress: bool = option(
        "boolean", boolean, False, _HOW,
        "[Decompress](../how-to/read-messages.md#compressed-payloads) payloads with a header `Content-Encoding`.",
    )  # fmt: skip
    max_decompressed_bytes: int = option(
        "integer", integer(1, 1 << 30), 64 << 20, _HOW, "Most bytes of one decompressed payload."
    )
    trace_context: str = option(
        "`off`, `column`, `links`", one_of("off", "column", "links"), "off", _HOW,
        "Header `traceparent` ([traces](metrics.md#traces)) as a column, or as links of a span of each task.",
    )  # fmt: skip
    include_headers: bool = option("boolean", boolean, True, _HOW, "Fill the column `headers`.")
    fail_on_corrupt: bool = option(
        "boolean", boolean, False, _HOW,
        "Fail at an unreadable message; `false`: a row with the reason.",
    )  # fmt: skip
    mode: str | None = option(
        "`FAILFAST`, `PERMISSIVE`, `DROPMALFORMED`", one_of("failfast", "permissive", "dropmalformed"), None, _HOW,
        "A message that [does not fit `.schema()`](../how-to/read-packed-messages.md#read-typed-columns): fail, a "
        "row with the reason, or none.", shown="`FAILFAST`; `PERMISSIVE` if the schema names `pack_error`",
    )  # fmt: skip
    progress_consumer: str | None = option(
        "text", text, None, _HOW,
        "Durable consumer that shows the query's progress at the broker.",
        scope=Scope(streaming=True, bridges=("nats",)),
    )  # fmt: skip

    @property
    def current(self) -> bool:
        return self.bucket is not None if self.latest_per_topic is None else self.latest_per_topic

    @property
    def starting_time(self) -> int | str | None:
        """Microseconds since the epoch, or ``now``; None: no time says where a query begins."""
        return _time(self.starting_offsets, self.starting_timestamp)

    @property
    def ending_time(self) -> int | str | None:
        return _time(self.ending_offsets, self.ending_timestamp)

    def loaded_at(self, now: int) -> Self:
        """The same options with ``now``, in microseconds since the epoch, in place of that word."""
        found: dict[str, Any] = {}
        if self.starting_time == NOW:
            found |= {"starting_offsets": now, "starting_timestamp": None}
        if self.ending_time == NOW:
            found |= {"ending_offsets": now, "ending_timestamp": None}
        return replace(self, **found)

    def sized_for(self, cores: int | None) -> Self:
        """The same options with ``parallelism`` where it was left out; ``cores``: None = not known."""
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
            self.bucket is None or None not in (self.middleware.key_value, self.middleware.operations),
            f"option bucket: {self.middleware.title} has no key-value buckets; name a stream, or topics",
        )
        named = bool(self.stream or self.streams or self.bucket) or (by_pattern and _has_path(self.url))
        require(
            self.pattern is None or named, "option pattern needs a stream: option stream, or mlp://host:9999/stream"
        )
        require(bool(self.topics) or named, "option topics (or stream) is needed: it names what to read")
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
        require(
            not (self.current and self.streams),
            "options latestPerTopic and streams exclude each other: a topic may have moved between the members; read "
            "each by option stream",
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
    return any(urlsplit(url).path.strip("/") for url in urls)


def _time(offset: Offsets, timestamp: int | str | None) -> int | str | None:
    return timestamp if timestamp is not None else offset if isinstance(offset, int) or offset == NOW else None


@dataclass(frozen=True, repr=False)
class DiscoveryOptions(ReadOptions, format_name="mamadiscovery"):
    starting_offsets: str | tuple[tuple[str, int], ...] = option(
        "`image`, `earliest`, `latest`, JSON", offsets("image", "earliest", "latest"), "image", _WHAT,
        "Where a new query begins: with the current sources, the oldest or the next change, or a sequence, "
        '`{"MAMA_EVENTS": 17}`.', scope=STREAMS,
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        "boolean", boolean, True, _HOW,
        "As the option of `mamasub`; with `false` the loss is a row of kind `gap`.", scope=STREAMS,
    )  # fmt: skip
    stream: str | None = option(
        "text", text, None, _WHAT, "With `tango` or `omnm`: stream of the recorder.", shown="the one of the `url`"
    )
    advisories: bool = option(
        "boolean", boolean, True, _WHAT,
        "Rows for readers that come or go.",
        scope=Scope(streaming=True, bridges=("nats",)),
    )  # fmt: skip

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        by = self.decodes
        require(self.stream is None or bool(by), "option stream is for what a recorder wrote: tango=true, omnm=true")
        named = self.stream is not None or _has_path(self.url)
        require(not by or named, f"option {by} needs the option stream, the one of the recorder")

    def _check_needs(self, stated: Collection[str]) -> None:
        super()._check_needs(stated)
        for name in ("advisories", "advisories_stream", "discovery_topic", "events_stream", "sources_stream"):
            require(
                not self.decodes or name not in stated,
                f"option {camel(name)} has no effect with tango=true or omnm=true, which read what a recorder wrote",
            )

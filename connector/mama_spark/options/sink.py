"""The options of ``mamapub``. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import urlsplit

from ..contracts.errors import ConfigError, OptionError
from .declare import camel, refuse_alone, require
from .paths import absolute_path, is_inside
from .publishing import PublishingOptions
from .urls import middleware_of, split_stream
from .values import is_traceparent
from .window_config import RetryPolicy, WindowConfig, usual_refill

_PLACES = ("discovery_topic", "sources_stream", "events_stream", "advisories_stream")


@dataclass(frozen=True, repr=False)
class SinkOptions(PublishingOptions, format_name="mamapub"):
    """The options of ``mamapub``; durations are seconds. Make it with :meth:`parse`."""

    storage: tuple[tuple[str, str], ...] = field(default=())

    @property
    def trace_column(self) -> str | None:
        """Column of ``traceContext``, if it names one."""
        given = self.trace_context
        return None if given in ("off", "true") or is_traceparent(given) else given

    @property
    def window(self) -> WindowConfig:
        """The window of these options, whatever the bridge can do (:meth:`WindowConfig.for_bridge`).

        :raises ConfigError: they do not go together
        """
        retry = None
        if self.retry_attempts != 0:
            retry = RetryPolicy.doubling(
                self.retry_backoff, self.retry_max_backoff, self.retry_deadline, self.retry_attempts
            )
        refill = usual_refill(self.max_in_flight) if self.refill_allowed_at is None else self.refill_allowed_at
        return WindowConfig(
            max_in_flight=self.max_in_flight, refill_allowed_at=refill, wait_timeout=self.wait_timeout, retry=retry,
            resend_uncertain=self.on_uncertain == "resend", ordered=self.order == "partition",
        )  # fmt: skip

    @property
    def storage_options(self) -> dict[str, str]:
        """The options ``storage.*``, passed to delta-rs as they are."""
        return dict(self.storage)

    def with_tables_below(self, folder: str) -> Self:
        """The same options, with relative paths of tables made absolute below ``folder``: one place for all processes.

        :raises OptionError: one table lies in the other
        """
        log, dead_letters = (
            None if path is None else absolute_path(path, folder) for path in (self.flight_log, self.dead_letter_table)
        )
        if log is not None and dead_letters is not None:
            require(
                not is_inside(log, dead_letters) and not is_inside(dead_letters, log),
                f"options flightLog and deadLetterTable must name two folders, neither in the other, got {log} and "
                f"{dead_letters}: VACUUM of the outer table would delete the files of the inner one",
            )
        return replace(self, flight_log=log, dead_letter_table=dead_letters)

    @property
    def bridges(self) -> frozenset[str]:
        """The bridge, and that of the log: options of the connection are those of the log."""
        logs = () if self.log is None else (middleware_of(self.log).name,)
        return frozenset((self.bridge_name, *logs))

    def at_log(self) -> Self:
        """The same options for the bridge of ``log``."""
        servers, stream = split_stream(self.log or ())
        return replace(self, url=servers, stream=stream, bridge=None, log=None)

    def _cross_check(self, given: Collection[str]) -> None:
        super()._cross_check(given)
        self._check_tango()
        self._check_openmama()
        self._check_bucket(given)
        self._check_retries()
        self._check_ids()
        self._check_exactly_once()
        self._check_failed_rows(given)
        self._check_order()
        self._check_pack(given)
        require(
            self.trace_column is None or self.pack == "off",
            f"option traceContext={self.trace_column} names a column, and a packed message of several rows has one "
            "header: use traceContext=true, or pack=off",
        )
        require(self.topic is None or not any(c.isspace() for c in self.topic), "option topic must not contain blanks")

    def _check_tango(self) -> None:
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

    def _check_bucket(self, given: Collection[str]) -> None:
        if self.bucket is None:
            return
        for name in ("topic", "topic_prefix", "stream", "streams", "create_stream", "pack", "trace_context"):
            require(name not in given, f"options bucket and {camel(name)} exclude each other: a bucket has keys")
        require(self.ttl is None or self.ttl >= 1, "option ttl must be a second at least, as the server wants it")
        require(
            self.ack_mode in ("auto", "message"),
            f"option ackMode={self.ack_mode} does not go with bucket: each key has a revision, which its "
            "acknowledgement brings",
        )

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
            bool(self.id_column) or self.on_duplicate_id is None,
            "option onDuplicateId needs a column of ids: name it with option idColumn",
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
            require(not dead, f"option {''.join(dead[:1])} needs onError=deadletter")
        if self.flight_log is None:
            require(
                self.on_error != "log", "option onError=log needs flightLog: failed rows would vanish without a trace"
            )
            require(
                not self.flight_log_columns or self.dead_letter_table is not None,
                "option flightLogColumns needs flightLog or deadLetterTable",
            )
            refuse_alone({*given} - {"flight_log_columns"}, "flight_log_", "flightLog")

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
            (("source_name", "source_ttl", "announce_counts", *_PLACES), "announce=true", self.announce),
            (("topic_events",), "flightLog or announce=true", self.announce or self.flight_log is not None),
            (("on_retention", "on_silent_server", "batches_stream"), "exactlyOnce=true", self.exactly_once),
            (("grow_streams",), "streams", self.streams is not None),
            (("ttl",), "bucket", self.bucket is not None),
            (("error_tolerance",), "onError=deadletter or onError=log", self.on_error != "fail"),
            (("retry_backoff", "retry_max_backoff"), "retryAttempts above 0", self.retry_attempts != 0),
            (("storage",), "flightLog or deadLetterTable", kept),
        ):
            for name in orphans:
                shown = "storage.*" if name == "storage" else camel(name)
                require(there or name not in stated, f"option {shown} has no effect without {needed}")

"""Settings of a durable stream: a table ``[[stream]]`` of the broker's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table
from mama_spark.options.times import duration, duration_or_none
from mama_spark.options.values import integer, nonempty_text, one_of, positive_size

_GROUP = "stream: durable"
_MOST = 10**18


@dataclass(frozen=True, slots=True)
class DurableSettings:
    """Times in seconds, sizes in bytes; None = no limit. A limit removes the oldest messages, never the newest one."""

    folder: str = option(
        "path", nonempty_text, "", _GROUP, "Folder on a local disk; one file a stream.", shown="needed"
    )
    max_age: float | None = option("duration", duration, None, _GROUP, "How long a message is kept.", shown="no limit")
    max_bytes: int | None = option(
        "size", positive_size, None, _GROUP,
        "Most bytes of all messages: sender, subject, content, id and headers.", shown="no limit",
    )  # fmt: skip
    max_messages: int | None = option("integer", integer(1, _MOST), None, _GROUP, "Most messages.", shown="no limit")
    dedup_window: float = option(
        "duration", duration_or_none, 120.0, _GROUP, "How long an id is stored once; 0: ids are ignored.", shown="2m"
    )
    dedup_ids: int = option(
        "integer", integer(0, _MOST), 1_000_000, _GROUP, "Most remembered ids, about 270 bytes of memory each."
    )
    max_running: int = option(
        "integer", integer(0, _MOST), 100_000, _GROUP, "Subjects that may hold a message with a time to live."
    )
    synchronous: str = option(
        "`normal`, `full`", one_of("normal", "full"), "normal", _GROUP,
        "`full`: acknowledged messages survive a power failure, too, at the price of one wait a batch.",
    )  # fmt: skip

    @classmethod
    def parse(cls, stream: bytes, settings: Mapping[str, Any]) -> DurableSettings:
        """Settings of one stream, from its table in the broker's configuration.

        :raises ConfigError: a setting is unknown, missing or out of range; the text names it
        """
        where = f"durable stream {stream.decode('utf-8', 'replace')!r}:"
        return cls(**parse_table(cls, settings, where, required=("folder",)))

"""Options of ``mamapub``: what becomes of rows that failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..paths import table_path
from ..values import one_of, text

_GROUP = "Delivery"


@dataclass(frozen=True, repr=False)
class FailureOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    on_error: str = option(
        "`fail`, `deadletter`, `log`", one_of("fail", "deadletter", "log"), "fail", _GROUP,
        "When rows failed for good: fail the write when everything else is published, send them to the dead letters, "
        "or leave them to the flight log.",
    )  # fmt: skip
    error_tolerance: str = option(
        "`data`, `all`", one_of("data", "all"), "data", _GROUP,
        "What `deadletter` and `log` cover: what the row itself is guilty of, or outages too.",
    )  # fmt: skip
    dead_letter_topic: str | None = option(
        "text", text, None, _GROUP, "Topic for failed rows, with `Mama-Error-*` headers and id + `-dlq`."
    )
    dead_letter_table: str | None = option(
        "path", table_path, None, _GROUP,
        "Delta table for failed rows, in full. A path or URL as for `flightLog`, and another one.",
    )  # fmt: skip

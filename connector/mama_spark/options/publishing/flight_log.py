"""Options of ``mamapub``: the flight log, and metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare import option
from ..paths import table_path
from ..scopes import STREAMS
from ..values import boolean, integer, metrics_setup, names, one_of

_GROUP = "Flight log"


@dataclass(frozen=True, repr=False)
class FlightLogOptions:
    """Part of :class:`~mama_spark.options.sink.SinkOptions`."""

    flight_log: str | None = option(
        "path", table_path, None, _GROUP,
        "Delta table that tells what became of every row: a folder that the driver and all executors see, or a URL of "
        "an object store. A relative path begins where the driver was started.", shown="off, with a warning",
    )  # fmt: skip
    flight_log_level: str = option(
        "`all`, `outcomes`, `errors`", one_of("all", "outcomes", "errors"), "outcomes", _GROUP,
        "`all`: also `published` events. `outcomes`: one terminal event a row. `errors`: only what was not acked.",
    )  # fmt: skip
    flight_log_columns: tuple[str, ...] = option(
        "columns", names("column"), (), _GROUP,
        "Columns of the DataFrame that go to the flight log and to the dead-letter table, to join with the source; one "
        "of the two is needed.", shown="",
    )  # fmt: skip
    flight_log_payload: str = option(
        "`none`, `failed`, `all`", one_of("none", "failed", "all"), "failed", _GROUP,
        "Whose payload and headers the flight log keeps, to publish them again.",
    )  # fmt: skip
    flight_log_compact_every: int = option(
        "integer", integer(0), 0, _GROUP,
        "Merge the small files of the flight log in the commit of every so many micro-batches. A failure of that is "
        "logged and fails nothing. 0: leave it to `mama flights maintain`.", scope=STREAMS,
    )  # fmt: skip
    metrics: str = option(
        "`off`, `otel`, `module:function`", metrics_setup, "off", _GROUP,
        "Whether executors export metrics by OpenTelemetry (extra `otel`): by the meter provider of the process, or by "
        "the one that the function returns, which is called once in each process.",
    )  # fmt: skip
    gc_freeze: bool = option(
        "boolean", boolean, False, _GROUP,
        "Python workers collect garbage after each piece of work, and then visit what they have imported no more "
        "(`gc.freeze`): 25 to 50 ms less in each worker of a small micro-batch. It holds for all Python functions of "
        "these workers.", scope=STREAMS,
    )  # fmt: skip

"""The tables of an archive: what ``mamasub`` reads of devices, and the configurations of attributes, each with the
times between which it held."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from mama_spark.contracts.errors import ConfigError
from mama_spark.options import camel, duration
from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table

from .rows import VALUES
from .value_changes import WITHOUT_THRESHOLDS, has_changed

#: Full name of an attribute, in SQL.
NAME = "concat('tango://', tango.tango_host, '/', device, '/', attribute)"
COLUMNS = [
    "kind", "tango.tango_host", "device", "attribute", "event", "tango.origin", "time", "to_date(time) AS day",
    "coalesce(tango.data_time, unix_micros(time) * 1000) AS data_time", "tango.received", "tango.quality",
    "tango.data_type", "tango.format", "tango.dim_x", "tango.dim_y",  # and of a scalar, whatever its type, as a number:
    """CASE WHEN tango.format = 'SCALAR' THEN coalesce(get(tango.value_double, 0), get(tango.value_long, 0),
       double(get(tango.value_ulong, 0)), double(get(tango.value_bool, 0))) END AS value""",
    *(f"tango.{part}_{kind}" for part in ("value", "set")
      for kind in ("double", "long", "ulong", "bool", "string", "encoded")),
    "tango.errors", "tango.gap_count", "tango.cause", "stream", "sequence",
    f"CASE WHEN attribute IS NOT NULL THEN xxhash64({NAME}) END AS att_conf_id",
]  # fmt: skip


def rows(spark: SparkSession, options: dict[str, str], devices: list[str]) -> DataFrame:
    """Records of the devices (names with ``*``; none = all), and those that cannot be read, before :data:`COLUMNS` are
    taken of them; ``options`` are those of ``mamasub``."""
    read = spark.readStream.format("mamasub").options(**options).option("tango", "true")
    named = read.load().selectExpr(
        "*", "tango.kind AS kind", "tango.device AS device", "tango.attribute AS attribute", "tango.event AS event",
        "coalesce(timestamp_micros(tango.data_time div 1000), timestamp) AS time",
    )  # fmt: skip
    wanted = named.where("device IS NOT NULL OR kind = 'corrupt'")
    patterns = "|".join(".*".join(map(re.escape, device.split("*"))) for device in devices)
    return wanted.where(wanted.device.rlike(f"(?i)^({patterns})$") | (wanted.kind == "corrupt")) if devices else wanted


#: Of a configuration: column in the table -> its name in the event.
CONFIGURATION = {
    "data_type": "data_type", "data_format": "data_format", "writable": "writable", "label": "label", "unit": "unit",
    "standard_unit": "standard_unit", "display_unit": "display_unit", "format": "format", "description": "description",
    "min_value": "min_value", "max_value": "max_value", "enum_labels": "enum_labels",
    "archive_rel_change": "arch_event.rel_change", "archive_abs_change": "arch_event.abs_change",
    "archive_period": "arch_event.period",
}  # fmt: skip


def configurations(spark: SparkSession, options: dict[str, str], devices: list[str]) -> DataFrame:
    """Records with configurations of attributes of the devices; parameters as of :func:`rows`."""
    asked = options if "topics" in options else {**options, "topics": "*.*.*.*.*.*.attr_conf"}
    return rows(spark, asked, devices).where("event = 'attr_conf' AND tango.detail IS NOT NULL")


def add_configurations(batch: DataFrame, path: str) -> None:
    """Add configurations to the table of all, each with the time until which it held. What is there is not added."""
    columns = [f"get_json_object(tango.detail, '$.{name}') AS {column}" for column, name in CONFIGURATION.items()]
    parts = [f"split_part(device, '/', {n}) AS {name}" for n, name in enumerate(("domain", "family", "member"), 1)]
    found = batch.selectExpr(
        f"xxhash64({NAME}) AS att_conf_id", f"{NAME} AS att_name", "tango.tango_host AS cs_name", *parts,
        "attribute AS name", "timestamp_micros(tango.received div 1000) AS started", *columns,
    )  # fmt: skip
    if found.isEmpty():
        return
    spark = batch.sparkSession
    before = spark.read.format("delta").load(path) if has_table(spark, path) else None
    every = found if before is None else before.drop("stopped").unionByName(found)
    order = Window.partitionBy("att_conf_id").orderBy("started")
    every = every.withColumn("hash", F.xxhash64(F.to_json(F.struct(*CONFIGURATION))))
    every = every.withColumn("hash_before", F.lag("hash").over(order)).where("hash_before IS DISTINCT FROM hash")
    every = every.drop("hash", "hash_before").withColumn("stopped", F.lead("started").over(order)).localCheckpoint()
    if before is None or every.count() != before.count():
        every.coalesce(1).write.format("delta").mode("overwrite").save(path)


def has_table(spark: SparkSession, path: str) -> bool:
    try:
        spark.read.format("delta").load(path)
    except AnalysisException as error:
        if error.getCondition() in ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"):
            return False
        raise
    return True


_GROUP = "archive"


class Reading(NamedTuple):
    """The compared values of one row; ``time``: nanoseconds since the epoch; ``quality``: None of an error;
    ``numbers``: elements of a number or an array of numbers; ``text``: stands for elements that are no numbers, and for
    those without thresholds."""

    time: int
    quality: str | None
    numbers: Sequence[float] = ()
    text: str = ""


def text_of(elements: object) -> str:
    """Stands for elements that are no numbers; empty if there are none."""
    return "" if elements is None else hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest()


def _change(value: Any) -> float:
    number = float(value)
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError("must be a number, 0 or more")
    return number


@dataclass(frozen=True)
class Strategy:
    """Strategy of the attributes that a pattern matches. Durations are in seconds."""

    period: float = option("duration", duration, 0.0, _GROUP, "Shortest time between two readings that are kept.")
    every: float = option(
        "duration", duration, 0.0, _GROUP, "Longest time between readings that are kept, changed or not."
    )
    abs_change: float = option("number", _change, 0.0, _GROUP, "Least change, in the unit of the attribute.")
    rel_change: float = option("number", _change, 0.0, _GROUP, "Least change, in percent of the reading kept before.")

    def keeps(self, last: Reading | None, now: Reading) -> bool:
        """Whether to keep a reading after the ``last`` one that was kept; None: none was."""
        if last is None or (last.quality, len(last.numbers)) != (now.quality, len(now.numbers)):
            return True
        since = (now.time - last.time) / 1e9
        if self.every and since >= self.every:
            return True
        return since >= self.period and self._has_changed(last, now)

    def _has_changed(self, last: Reading, now: Reading) -> bool:
        exact = all(isinstance(number, int) for number in (*last.numbers, *now.numbers))
        old, new = (np.array(one.numbers, object if exact else np.float64) for one in (last, now))
        absolute, relative = ((-limit, limit) if limit else None for limit in (self.abs_change, self.rel_change))
        return last.text != now.text or has_changed(old, new, absolute, relative)

    def select(self, last: Reading | None, readings: Iterable[Reading]) -> tuple[list[bool], Reading | None]:
        """Whether to keep each of some readings, which are in order; and the last one that was kept."""
        kept = []
        for now in readings:
            kept.append(self.keeps(last, now))
            last = now if kept[-1] else last
        return kept, last


def parse_strategies(table: Mapping[str, Any]) -> list[tuple[str, Strategy]]:
    """Strategies of the table ``[strategies]``, in the order of the file.

    :param table: ``<pattern>.<key>`` -> value, where a pattern is ``domain/family/member/attribute`` with ``*``, ``?``
    :raises ConfigError: a key is unknown, or a value is invalid; the message names it
    """
    by_pattern: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        pattern, _, key = name.rpartition(".")
        if pattern.count("/") != 3:
            raise ConfigError(f'[strategies] {name}: must stand in [strategies."domain/family/member/attribute"]')
        by_pattern.setdefault(pattern.lower(), {})[key] = value
    return [
        (pattern, Strategy(**parse_table(Strategy, values, f'[strategies."{pattern}"]', camel)))
        for pattern, values in by_pattern.items()
    ]


def strategy_of(strategies: Sequence[tuple[str, Strategy]], attribute: str) -> Strategy | None:
    """The first strategy whose pattern matches ``domain/family/member/attribute``; None: all readings are kept."""
    return next((found for pattern, found in strategies if fnmatchcase(attribute.lower(), pattern)), None)


def thin_out(events: DataFrame, table: dict[str, Any]) -> DataFrame:
    """Keep the readings that the strategies want, of each attribute and type of event beside the last one kept;
    ``table`` is ``[strategies]`` of the configuration, and keeps all if empty."""
    if not table:
        return events
    strategies = parse_strategies(table)

    def select(key: tuple[Any, ...], batches: Iterable[Any], state: Any) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]  # only strategies need it

        found = pd.concat(list(batches), ignore_index=True).sort_values("sequence")
        strategy = strategy_of(strategies, f"{key[1]}/{key[2]}") if key[0] == "event" else None
        if strategy is not None:
            last = Reading(*json.loads(state.get[0])) if state.exists else None
            kept, last = strategy.select(last, map(reading, found.to_dict("records")))
            state.update((json.dumps(last),))
            found = found[kept]
        yield found

    key = ["kind", "device", "attribute", "event", "tango_host"]
    kept = events.groupBy(*key).applyInPandasWithState(select, events.schema, "last string", "append", "NoTimeout")
    # a column that is computed again, since a write by partition cannot sort rows as they come from Python
    return kept.withColumn("day", F.to_date("time"))


def reading(row: dict[str, Any]) -> Reading:
    """The values of a row that a strategy compares."""
    found = {kind: np.asarray(row[f"value_{kind}"]).tolist() for kind in VALUES if row[f"value_{kind}"] is not None}
    numbers: list[float] = []
    if row["data_type"] not in [kind.name for kind in WITHOUT_THRESHOLDS]:
        numbers = found.pop("double", None) or found.pop("long", None) or list(map(int, found.pop("ulong", ())))
    return Reading(int(row["data_time"]), row["quality"], numbers, text_of(found or None))

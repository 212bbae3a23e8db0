"""Keeps of the readings of an archive those that strategies want."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..rows.tango_schema import VALUES
from ..value_changes import WITHOUT_THRESHOLDS
from .archive_strategies import Reading, parse_strategies, strategy_of, text_of

_WITHOUT_THRESHOLDS = {kind.name for kind in WITHOUT_THRESHOLDS}


def thin_out(events: DataFrame, table: dict[str, Any]) -> DataFrame:
    """Keep the readings that the strategies want: of each attribute and type of event beside the last one kept.

    :param table: ``[strategies]`` of the configuration; empty = all are kept
    """
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
    """What a strategy compares of a row."""
    found = {kind: np.asarray(row[f"value_{kind}"]).tolist() for kind in VALUES if row[f"value_{kind}"] is not None}
    numbers: list[float] = []
    if row["data_type"] not in _WITHOUT_THRESHOLDS:
        numbers = found.pop("double", None) or found.pop("long", None) or list(map(int, found.pop("ulong", ())))
    return Reading(int(row["data_time"]), row["quality"], numbers, text_of(found or None))

"""What a notebook shows of a flight log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from mama_spark.flightlog.commit import commit
from mama_spark.spark.read_flight_log import as_html

from tests.support.flight_logs import BATCH, flights, stage


def test_what_a_failed_row_has_not_is_no_word(tmp_path: Path) -> None:
    nowhere = pa.nulls(2, pa.string()).dictionary_encode()
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, flights(2, failed=1, topic=nowhere)))
    shown = as_html(str(tmp_path))
    assert shown is not None
    assert "<td>denied</td><td>-</td><td>id-1</td>" in shown

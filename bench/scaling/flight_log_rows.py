"""Bytes of a flight log by its rows (``flightLogLevel=outcomes``), as one task writes them."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.staging import Staging

from .partition_reports import flights

TITLE = "Rows of a flight log"
UNIT = "rows"
SIZES = (10_000, 100_000, 1_000_000)
COLUMNS = {"log_mb": "MB", "row": "bytes a row", "write_s": "processor s to write them"}
GROWS = "write_s"
PORTION = 100_000


def measure(rows: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        staging = Staging(str(Path(folder, "log")), {}, WriteId("query", "run", 0, "nats"), 0, 0)
        staging.check()
        portions = [flights(min(PORTION, rows - first), first) for first in range(0, rows, PORTION)]
        before = time.process_time()
        for portion in portions:
            staging.add_flights(portion)
        size = sum(part.size for part in staging.close())
        return {"log_mb": size / 1e6, "row": size / rows, "write_s": time.process_time() - before}

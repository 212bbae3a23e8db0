"""What a driver needs in memory does not depend on the rows of a write: executors keep the outcomes."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.nats_servers import Admin
from tests.support.processes import descendants, resident_memory
from tests.support.spark.standalone import StandaloneCluster, submit

pytestmark = [pytest.mark.explore, pytest.mark.timeout(3_600)]

SCRIPT = Path(__file__).parents[1] / "driver_scripts" / "many_rows.py"
ROWS, PARTITIONS = 10_000_000, 40
MOST = 1_000_000_000
SMALL_DRIVER = {"spark.driver.memory": "512m"}


def memory_of(driver: int) -> int:
    """Resident bytes of a driver: its JVM, its Python program, and the Python processes that plan and commit."""
    found = 0
    for pid in (driver, *descendants(driver)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += resident_memory(pid)
    return found


def test_a_driver_that_publishes_ten_million_rows_needs_less_than_a_gigabyte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with NatsServer(tmp_path / "nats") as server, Admin(server.url) as admin, StandaloneCluster(tmp_path) as cluster:
        admin.create_stream("ORDERS", ["orders.>"])
        options = {"url": server.url, "flightLog": str(log), "flightLogLevel": "outcomes"}
        given = {"rows": ROWS, "partitions": PARTITIONS, "options": options}
        most = 0
        with submit(cluster, tmp_path, SCRIPT, json.dumps(given), conf=SMALL_DRIVER) as application:
            while True:
                most = max(most, memory_of(application.process.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    application.process.wait(0.5)
                    break
            application.wait()
        assert admin.info("ORDERS")["state"]["messages"] == ROWS
    events = DeltaTable(log).to_pyarrow_dataset().count_rows()
    print(f"driver: {most / 1e6:.0f} MB; {events:,} events")
    assert events >= ROWS
    assert most < MOST

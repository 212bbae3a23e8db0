"""A stream that was restored from an older copy and grew beyond the position of its reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import DataLost
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.subscribe.data_source import MamaSubStreamReader, stream_reader
from mama_spark.spark.subscribe.schema import SCHEMA

from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query

OLD, READ = 10, 25


def publish(server: NatsServer, values: range) -> None:
    rows = [("s.a", b"%d" % n) for n in values]
    assert Query(server.url, {"exactlyOnce": "false"}).attempt(rows).counts.acked == len(rows)


def batch(reader: MamaSubStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    tasks: Any = reader.partitions(start, end)
    values = [value for task in tasks for some in reader.read(task) for value in some["value"].to_pylist()]
    return end, sorted(map(int, values))


def test_what_was_stored_under_sequences_that_were_read_is_no_silent_loss(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"

    def reader(**more: str) -> MamaSubStreamReader:
        given = {"url": server.url, "stream": "S", "startingOffsets": "earliest", **more}
        return stream_reader(given, SCHEMA, 0)

    with NatsServer(tmp_path / "server", store=store) as server:
        with Admin(server.url) as admin:
            admin.create_stream("S", ["s.>"])
        publish(server, range(OLD))
        server.shutdown()
        shutil.copytree(store, copy)
        server.start()
        publish(server, range(OLD, READ))
        cut, values = batch(reader(maxOffsetsPerTrigger=f"{OLD + 5}"), reader().initialOffset())
        assert values == list(range(OLD + 5))
        known, values = batch(reader(), cut)
        assert values == list(range(OLD + 5, READ))
        assert batch(reader(), known) == (known, [])
        for new in (5, READ - OLD, READ):  # fewer than were lost, as many, more
            server.shutdown()
            shutil.rmtree(store)
            shutil.copytree(copy, store)
            server.start()
            publish(server, range(100, 100 + new))
            for start in (known, cut):
                with pytest.raises(DataLost, match="stream 'S': "):
                    batch(reader(), start)
                end, values = batch(reader(failOnDataLoss="false"), start)
                assert values == list(range(100, 100 + new))
                assert batch(reader(), end) == (end, [])

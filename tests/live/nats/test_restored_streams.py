"""A stream that was restored from an older copy and grew beyond the position of its reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import DataLost
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.mamasub import StreamQuery
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query

OLD, READ = 10, 25


def publish(server: NatsServer, values: range) -> None:
    rows = [("s.a", b"%d" % n) for n in values]
    assert Query(server.url, {"exactlyOnce": "false"}).attempt(rows).counts.acked == len(rows)


def test_what_was_stored_under_sequences_that_were_read_is_no_silent_loss(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"

    def batch(start: dict[str, Any] | None, **more: str) -> tuple[dict[str, Any], list[int]]:
        query = StreamQuery(server.url, start, stream="S", startingOffsets="earliest", **more)
        values = sorted(int(row["value"]) for row in query.batch(limited=True))
        return json.loads(json.dumps(query.offset)), values

    with NatsServer(tmp_path / "server", store=store) as server:
        with Admin(server.url) as admin:
            admin.create_stream("S", ["s.>"])
        publish(server, range(OLD))
        server.shutdown()
        shutil.copytree(store, copy)
        server.start()
        publish(server, range(OLD, READ))
        cut, values = batch(None, maxOffsetsPerTrigger=f"{OLD + 5}")
        assert values == list(range(OLD + 5))
        known, values = batch(cut)
        assert values == list(range(OLD + 5, READ))
        assert batch(known) == (known, [])
        for new in (5, READ - OLD, READ):  # fewer than were lost, as many, more
            server.shutdown()
            shutil.rmtree(store)
            shutil.copytree(copy, store)
            server.start()
            publish(server, range(100, 100 + new))
            for start in (known, cut):
                with pytest.raises(DataLost, match="stream 'S': "):
                    batch(start)
                end, values = batch(start, failOnDataLoss="false")
                assert values == list(range(100, 100 + new))
                assert batch(end) == (end, [])

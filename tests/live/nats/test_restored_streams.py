"""Streams that were restored from an older copy and grew beyond the position of a reader, or of a batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import DataLost
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.mamasub import StreamQuery
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, values

OLD, READ = 10, 25


class RestoredServer(NatsServer):
    """A server whose streams can be put back to what they were, each by itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "server", store=folder / "store")
        self._files, self._copy = folder / "store", folder / "copy"

    def back_up(self) -> None:
        self.shutdown()
        shutil.copytree(self._files, self._copy)
        self.start()

    def restore(self) -> None:
        """All streams that were there then; others stay as they are."""
        self.shutdown()
        for stream in self._copy.glob("jetstream/*/streams/*"):
            there = self._files / stream.relative_to(self._copy)
            shutil.rmtree(there)
            shutil.copytree(stream, there)
        self.start()

    def publish(self, numbers: range, topic: str = "s.a", **options: str) -> None:
        rows = [(topic, b"%d" % n) for n in numbers]
        assert Query(self.url, {"exactlyOnce": "false", **options}).attempt(rows).counts.acked == len(rows)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestoredServer]:
    with RestoredServer(tmp_path) as server:
        yield server


def test_what_was_stored_under_sequences_that_were_read_is_no_silent_loss(server: RestoredServer) -> None:
    def batch(start: dict[str, Any] | None, **more: str) -> tuple[dict[str, Any], list[int]]:
        query = StreamQuery(server.url, start, stream="S", startingOffsets="earliest", **more)
        numbers = sorted(int(row["value"]) for row in query.batch(limited=True))
        return json.loads(json.dumps(query.offset)), numbers

    with Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"])
    server.publish(range(OLD))
    server.back_up()
    server.publish(range(OLD, READ))
    cut, numbers = batch(None, maxOffsetsPerTrigger=f"{OLD + 5}")
    assert numbers == list(range(OLD + 5))
    known, numbers = batch(cut)
    assert numbers == list(range(OLD + 5, READ))
    assert batch(known) == (known, [])
    for new in (5, READ - OLD, READ):  # fewer than were lost, as many, more
        server.restore()
        server.publish(range(100, 100 + new))
        for start in (known, cut):
            with pytest.raises(DataLost, match="stream 'S': "):
                batch(start)
            end, numbers = batch(start, failOnDataLoss="false")
            assert numbers == list(range(100, 100 + new))
            assert batch(end) == (end, [])


MODES: list[dict[str, str]] = [
    {"ackMode": "message"},
    {"ackMode": "batch"},
    {"order": "partition"},
    {"pack": "lines", "packMaxRows": "2"},
    {"ackMode": "batch", "pack": "arrow", "packMaxRows": "2"},
]


@pytest.mark.parametrize("way", ["batch", "stream", "retry"])
def test_a_batch_is_stored_once_however_often_it_is_written_after_its_stream_went_back(
    server: RestoredServer, way: str
) -> None:
    """What keeps the markers did not go back."""
    rows, cells = 6, {f"W{n}": mode for n, mode in enumerate(MODES)}

    def write(name: str, run: int) -> None:
        job = {"txnAppId": name, "txnVersion": "1"} if way == "batch" else {}
        options = {"waitTimeout": "300ms", **job, **cells[name]}
        query = Query(server.url, options, batch=None if way == "batch" else 7)
        again = {"attempt": run} if way == "retry" else {"run": f"{run}"}
        report = query.attempt([(f"{name}.{n % 2}", b"row %d" % n) for n in range(rows)], **again)
        assert (report.fatal, report.counts.acked) == (None, rows), cells[name]

    with Admin(server.url) as admin:
        for name in cells:
            admin.create_stream(name, [f"{name}.>"], duplicate_window=WINDOW, allow_batched=True)
    server.back_up()
    for name in cells:
        server.publish(range(8), f"{name}.other")
        write(name, 0)
    server.restore()
    for run in (1, 2):
        with Admin(server.url) as admin:
            forget_ids(admin)
            for name, mode in cells.items():
                write(name, run)
                assert values(admin.messages(name)) == {(f"{name}.{n % 2}", b"row %d" % n): 1 for n in range(rows)}, (
                    mode
                )


def test_a_run_whose_stream_goes_back_in_it_ends_and_the_next_one_stores_the_batch_once(server: RestoredServer) -> None:
    given = [("s.a", b"row %d" % n) for n in range(6)]
    write = Query(server.url, {"waitTimeout": "300ms"}).attempt
    with Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"], duplicate_window=WINDOW)
    server.publish(range(3), "s.other")
    server.back_up()
    for run in ("first", "second"):
        assert write(given, run=run).counts.acked == len(given)
    server.restore()
    report = write(given, run="second", attempt=1)
    assert "stream 'S' ends at sequence 3, and went on to 9 when this run of batch 7 began" in (report.fatal or "")
    for run in ("third", "fourth"):
        with Admin(server.url) as admin:
            forget_ids(admin)
            assert write(given, run=run).counts.acked == len(given)
            assert values(m for m in admin.messages("S") if m.topic == "s.a") == dict.fromkeys(given, 1)

"""What an earlier state of the package left behind is read and carried on (``tests/data/formats``, which
``tests/data/record_formats.py`` has written): each format that ``tests/spark/test_older_releases.py`` does not have."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.flightlog.reading import unpublished
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.subscribe.data_source import batch_reader, schema_for

from tests.data.record_formats import NOON, PACKS, ROWS, STORED, dead_letters
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, rows, values

DATA = Path(__file__).parents[1] / "data" / "formats"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    folder = tmp_path_factory.mktemp("older") / "nats"
    shutil.copytree(DATA / "store", folder / "store")
    with NatsServer(folder) as found:
        yield found


def read(server: NatsServer, **options: str) -> list[dict[str, Any]]:
    given = {"url": server.url, **options}
    reader = batch_reader(given, schema_for(given), 0)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_batch_that_was_interrupted_is_repeated_by_the_markers_of_then(server: NatsServer) -> None:
    report = Query(server.url).attempt(rows(0, ROWS), run="again")
    assert (report.counts.acked, report.counts.duplicates) == (ROWS, STORED), report.counts.sentence()
    with Admin(server.url) as admin:
        assert values(admin.messages("ONCE")) == Counter(rows(0, ROWS))


@pytest.mark.parametrize("stream", PACKS)
def test_packs_become_rows(server: NatsServer, stream: str) -> None:
    found = [(row["topic"].partition(".")[2], row["value"]) for row in read(server, stream=stream)]
    assert Counter(found) == Counter(rows(0, ROWS))


def test_records_of_tango_become_rows(server: NatsServer) -> None:
    found = [row["tango"] for row in read(server, stream="TANGO", tango="true")]
    assert [(one["kind"], one["device"], one["attribute"]) for one in found] == [
        ("event", "lab/cell/1", "temperature")
    ] * 3
    assert [one["value_double"] for one in found] == [[0.0], [1.5], [3.0]]
    assert [one["data_time"] for one in found] == [NOON + n * 10**9 for n in range(3)]


def test_records_of_openmama_become_rows(server: NatsServer) -> None:
    found = read(server, stream="MAMA", omnm="true", fields="wIssueSymbol string, MdSeqNum int")
    assert [(row["wIssueSymbol"], row["MdSeqNum"]) for row in found] == [("IBM", n) for n in range(3)]
    assert [row["mama"]["received"] for row in found] == [NOON + n for n in range(3)]


def test_dead_letters_can_be_published_again_and_the_table_takes_more(server: NatsServer, tmp_path: Path) -> None:
    shutil.copytree(DATA / "dead_letters", tmp_path / "dead_letters")
    table = str(tmp_path / "dead_letters")
    found = unpublished(table, {})
    letters = zip(found["topic"].to_pylist(), found["value"].to_pylist(), strict=True)
    assert Counter(letters) == Counter((f"full.{topic}", value) for topic, value in rows(10, 15))
    with Admin(server.url) as admin:
        dead_letters(admin, server.url, tmp_path)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 10

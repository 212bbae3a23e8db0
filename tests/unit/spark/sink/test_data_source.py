"""A write from the plan on the driver to the commit, without a JVM: driver and tasks differ in where they were started
and in what their disks hold."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.contracts.errors import ConfigError, FlightLogError, OptionError, RowsFailed, SchemaError
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.schema import DEAD_LETTER_TABLE, FLIGHT_LOG
from mama_spark.memory import MemoryBroker
from mama_spark.spark.last_write import LastWrite
from mama_spark.spark.sink.data_source import MamaPubWriter, batch_writer, stream_writer
from mama_spark.spark.sink.job import PartitionReport, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.write_note import NOTE
from pyspark.sql.types import StringType, StructField, StructType

from tests.support.flight_logs import set_features
from tests.support.spark.memory_harness import TASK
from tests.support.spark.sink_harness import flights

SCHEMA = StructType([StructField(name, StringType()) for name in ("topic", "value")])


def plan(broker: MemoryBroker, **options: str) -> MamaPubWriter:
    given = {"url": f"memory://{broker.name}", **options}
    if "deadLetterTable" in options:
        given["onError"] = "deadletter"
    return batch_writer(given, SCHEMA, overwrite=False)


def run(writer: MamaPubWriter, partition: int = 0) -> PartitionReport:
    rows = pa.record_batch({"topic": ["a", "b"], "value": ["1", "2"]})
    return publish_partition(writer.job, TaskInfo(partition, 0, None, None, None, False), iter([rows]))


def test_relative_paths_begin_where_the_driver_was_started(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors of a cluster are started in folders of their own."""
    for folder in ("driver", "executor"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    writer = plan(broker, flightLog="data/log", deadLetterTable="data/letters")
    monkeypatch.chdir(tmp_path / "executor")
    report = run(writer)
    assert report.fatal is None
    monkeypatch.chdir(tmp_path / "driver")
    writer.commit([report])
    assert flights(tmp_path / "driver" / "data" / "log").num_rows == 2
    assert list((tmp_path / "executor").iterdir()) == []


@pytest.mark.parametrize("option", ["flightLog", "deadLetterTable"])
def test_folder_that_driver_and_executors_do_not_share_is_found_before_anything_is_published(
    broker: MemoryBroker, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "log"
    writer = plan(broker, **{option: str(path)})
    shutil.rmtree(path)  # the executor's disk has no such folder
    report = run(writer)
    assert report.fatal is not None
    assert f"{option} {path}: the executor on" in report.fatal
    assert broker.messages() == []
    with pytest.raises(ConfigError, match="use a folder that the driver and all executors mount"):
        writer.commit([report])
    writer.abort([report])
    assert not path.exists()


def test_rows_that_failed_in_a_write_that_goes_on_are_told_by_reason_below_its_line(
    broker: MemoryBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.denied.add("b")
    writer = plan(broker, onError="log", flightLog=str(tmp_path))
    writer.commit([run(writer, partition) for partition in range(2)])
    line, *below = capsys.readouterr().err.splitlines()
    assert line.startswith("mamapub: 4 rows: 2 acked, 2 failed, 0 timed out, ")
    (failed,) = below
    assert failed.startswith("  2 x PUBLISH_ERROR_NOT_ENTITLED: "), failed


def test_rows_that_failed_in_a_stream_that_goes_on_are_told_in_a_line_for_each_micro_batch(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.denied.add("b")
    given = {"url": f"memory://{broker.name}", "onError": "log", "flightLog": str(tmp_path)}
    writer = stream_writer(given, SCHEMA, overwrite=False)
    for batch_id, topics in enumerate((["a", "b"], ["a", "a"])):
        rows = pa.record_batch({"topic": topics, "value": ["1", "2"]})
        task = TaskInfo(0, 0, "query", batch_id, "run", False)
        writer.commit([publish_partition(writer.job, task, iter([rows]))], batch_id)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("mamapub: batch 0: 2 rows: 1 acked, 1 failed, 0 timed out; first failures: 1 x PUBLISH_ER")


def test_a_repetition_by_the_id_prefix_of_a_run_is_told_how_long_ago_that_ended(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.denied.add("b")
    first = plan(broker, flightLog=str(tmp_path))
    with pytest.raises(RowsFailed):
        first.commit([run(first)])
    plan(broker, flightLog=str(tmp_path), idPrefix="of my own")
    assert caplog.text == ""
    plan(broker, flightLog=str(tmp_path), idPrefix=first.job.run_id)
    told = rf"the run with idPrefix={first.job.run_id!r} ended \d+ s ago: if the stream's duplicate window"
    assert re.search(told, caplog.text)


def test_exactly_once_without_a_name_of_the_write_says_what_it_does_not_cover(caplog: pytest.LogCaptureFixture) -> None:
    given = {"url": "nats://nowhere", "exactlyOnce": "true"}
    for named in ({"txnAppId": "a", "txnVersion": "1"}, {}):
        assert "covers" not in caplog.text
        batch_writer(given | named, SCHEMA, overwrite=False)
    assert "without txnAppId and txnVersion, a repetition of the write stores all rows again" in caplog.text


@pytest.mark.parametrize("pack", ["off", "arrow"])
def test_dead_letters_have_the_columns_to_join_with_where_no_flight_log_is_kept(
    broker: MemoryBroker, tmp_path: Path, pack: str
) -> None:
    broker.denied.add("b")
    given = {"onError": "deadletter", "deadLetterTable": str(tmp_path), "flightLogColumns": "n", "pack": pack}
    schema = StructType([*SCHEMA.fields, StructField("n", StringType())])
    writer = batch_writer({"url": f"memory://{broker.name}", **given}, schema, overwrite=False)
    rows = pa.record_batch({"topic": ["b", "a", "b"], "value": ["x"] * 3, "n": ["1", "2", "3"]})
    writer.commit([publish_partition(writer.job, TASK, iter([rows]))])
    letters = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert [(row["topic"], row["n"]) for row in letters] == [("b", "1"), ("b", "3")]


@pytest.mark.parametrize("table", ["flightLog", "deadLetterTable"])
def test_a_run_of_a_version_that_was_there_is_noted_as_the_log_has_it(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    given = {table: str(tmp_path / "log"), "txnAppId": "orders", "txnVersion": "7"}
    for committed, repeats in ((True, False), (False, True)):
        writer = plan(broker, **given)
        writer.commit([run(writer)])
        note = json.loads((tmp_path / NOTE).read_text())
        assert (note["counts"]["rows"], note["committed"], note["repeats"]) == (2, committed, repeats)
        last = LastWrite(None, **note)  # type: ignore[arg-type]
        told = (repr(last), last._repr_html_(), caplog.text)
        assert ["version was committed before" in text for text in told] == [repeats] * 3, told


@pytest.mark.parametrize("option", ["flightLog", "deadLetterTable"])
def test_a_table_that_takes_no_commit_is_refused_when_the_write_is_planned(
    broker: MemoryBroker, tmp_path: Path, option: str
) -> None:
    path = tmp_path / "log"
    kind = DEAD_LETTER_TABLE if option == "deadLetterTable" else FLIGHT_LOG
    commit(str(path), {}, WriteId(None, "run", None, "memory"), [], app=("first", 0), kind=kind)
    writer = plan(broker, **{option: str(path)})
    set_features(path, "rowTracking", "domainMetadata")
    with pytest.raises(FlightLogError, match=f"{option}: .*domainMetadata, rowTracking"):
        plan(broker, **{option: str(path)})
    report = run(writer)  # which was planned before
    assert report.fatal is not None
    assert "rowTracking" in report.fatal
    assert broker.messages() == []
    writer.abort([report])  # raises nothing, or Spark would show it before the error that it aborts for


def test_an_abort_that_fails_leaves_the_error_that_it_aborts_for_the_last(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unforeseen(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    broker.denied.add("a")
    writer = plan(broker, flightLog=str(tmp_path))
    report = run(writer)
    monkeypatch.setattr("mama_spark.flightlog.commit.abort", unforeseen)
    with pytest.raises(RowsFailed):
        writer.commit([report])
    writer.abort([report])
    assert caplog.text.count("RuntimeError: a bug") == 2  # with its trace


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"flightLog": "sales"}, FlightLogError, r"other files \(sales.csv\)"),
        ({"flightLog": "other"}, FlightLogError, "other/ is another table"),
        ({"deadLetterTable": "other"}, FlightLogError, "other/ is another table"),
        ({"flightLog": "file"}, FlightLogError, "file is a file, not the folder of a table"),
        ({"flightLog": "log", "flightLogColumns": "topic"}, SchemaError, "column 'topic' has the name of a column"),
    ],
    ids=str,
)
def test_what_cannot_be_the_table_is_refused_when_the_write_is_planned(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], error: Any, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sales").mkdir()
    Path("sales/sales.csv").write_text("1")
    Path("file").write_text("no folder")
    write_deltalake("other", pa.table({"x": [1]}))
    there = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(error, match=why):
        plan(broker, **options)
    assert {path.name for path in tmp_path.iterdir()} == there


def test_overwriting_is_refused_with_the_way_out() -> None:
    for make, way in ((batch_writer, r'mode\("append"\)'), (stream_writer, r'outputMode\("append"\)')):
        with pytest.raises(OptionError, match=way):
            make({"url": "memory://x"}, SCHEMA, True)

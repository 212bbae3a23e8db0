"""What ``mama flights`` says of a flight log that is damaged: one line, and no trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from mama_spark import cli
from mama_spark.errors import FlightLogError
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.replay import unpublished
from mama_spark.flightlog.schema import table_schema
from mama_spark.flightlog.write_id import WriteId

from tests.support.flight_logs import flights, stage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def fill(file: Path) -> None:
    file.write_bytes(b"{x" * (file.stat().st_size // 2))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    schema = table_schema()
    values = {"kind": "flight", "event": "acked", "topic": "t", "committed": True, "latency_us": 5}
    rows = pa.Table.from_pylist([{name: values.get(name) for name in schema.names}], schema)
    write_deltalake(str(tmp_path / "log"), rows, partition_by=["committed"])
    return tmp_path / "log"


@pytest.mark.parametrize("damage", [cut, fill, Path.unlink])
@pytest.mark.parametrize("file", ["**/*.parquet", "_delta_log/*.json"])
def test_a_damaged_log_is_an_error_of_one_line(
    log: Path, file: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(next(log.glob(file)))
    assert cli.main(["flights", str(log)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("mama: ")
    assert "damaged" in said or "no flight log there" in said
    assert "<unknown>" not in said


def test_a_file_is_no_flight_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("x")
    for command in (["flights"], ["flights", "maintain"], ["report"]):
        assert cli.main([*command, str(tmp_path / "log")]) == 2
        assert f"{tmp_path / 'log'} is a file, not the folder of a table" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [cut, fill, Path.unlink])
def test_a_damaged_file_ends_maintenance_and_republication_with_one_line(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        write_id = WriteId("query", "run", number, "nats")
        commit(str(tmp_path), {}, write_id, stage(tmp_path, write_id, flights(2, failed=1)), app=("query", number))
    damage(next(tmp_path.glob("parts/**/*.parquet")))
    assert cli.main(["flights", "maintain", str(tmp_path)]) == 2
    assert re.fullmatch(r"mama: .*a file of the table is damaged or missing: .*; restore it\n", capsys.readouterr().err)
    with pytest.raises(FlightLogError, match="a file of the table is damaged or missing"):
        unpublished(str(tmp_path), {})

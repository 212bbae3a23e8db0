"""The summary of a flight log, held against exact computations, and the rows that can be published again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from mama_spark.contracts.errors import DoubledId, FlightLogError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.flightlog.columns import LoggedEvent
from mama_spark.flightlog.commit import abort, commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.reading import PERCENTILE_RANK_ERROR, REPLAY, failed, failed_text, summarise, unpublished
from mama_spark.flightlog.schema import PUBLISHED, TIMEOUT
from mama_spark.flightlog.staging import Staging
from mama_spark.report.data import read_report

from jobs import republish as job
from tests.support.flight_logs import BATCH, STREAM, T0, commit_dead_letters, flights, stage, stage_letters


def keep(table: Path, write_id: WriteId, *columns: Any) -> None:
    commit(str(table), {}, write_id, stage(table, write_id, *columns))


def late(n: int = 1, name: str = "late", **other: Any) -> Any:
    event = np.full(n, TIMEOUT, np.uint8)
    reasons = dict.fromkeys(range(n), ("TIMEOUT", None, "no answer"))
    return flights(n, name, event=event, reasons=reasons, **{"may_have_landed": np.ones(n, np.bool_), **other})


def test_counts_by_event_and_status(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(5, failed=2), late(3), flights(2, "twice", duplicate=np.ones(2, np.bool_)))
    found = summarise(str(tmp_path), {})
    assert {(r["event"], r["status"], r["committed"]): r["flights"] for r in found.events} == {
        ("acked", None, True): 5,
        ("completed_exceptionally", "PUBLISH_ERROR_NOT_ENTITLED", True): 2,
        ("timeout", "TIMEOUT", True): 3,
    }
    assert found.count() == 10
    assert found.count("acked", "timeout") == 8
    assert (found.duplicates, found.in_doubt) == (2, 3)
    assert sum(r["rows"] for r in found.events) == 10


def test_doubled_ids_are_counted_whatever_became_of_their_rows(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(2))
    assert "doubled ids" not in summarise(str(tmp_path), {}).text()
    sent = dict.fromkeys((1, 2), (None, None, DoubledId.label))
    refused = {1: ("INVALID_ARG", None, str(DoubledId().info)), 2: ("INVALID_ARG", None, "the value is null")}
    keep(
        tmp_path, STREAM, flights(3, "sent", reasons=sent), flights(3, "late", failed=2, at=T0 + 10**6, reasons=refused)
    )
    found = summarise(str(tmp_path), {})
    assert (found.doubled_ids, found.doubled_id) == (3, {"flight_id": "sent-1", "topic": "orders.new"})
    assert "doubled ids  3 with a doubled id in the same write (the first: id 'sent-1', topic" in found.text()


def test_acknowledged_after_doubt_is_not_in_doubt(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(2, may_have_landed=np.ones(2, np.bool_)))
    assert summarise(str(tmp_path), {}).in_doubt == 0


def test_rows_of_committed_writes_are_counted_once_and_other_attempts_apart(tmp_path: Path) -> None:
    """As after a driver that was killed: its attempt is repeated under the same ids."""
    stage(tmp_path, STREAM, flights(4, "first", failed=1, rows=np.full(4, 10, np.int32)), late(2))
    abort(str(tmp_path), {}, STREAM)
    sent = flights(2, "sent", event=np.full(2, PUBLISHED, np.uint8), ack_level="none", at=T0 + 10**6)
    told = flights(3, "told", event=np.full(3, PUBLISHED, np.uint8))  # with flightLogLevel=all before their outcome
    keep(tmp_path, BATCH, flights(3, "again", failed=1, rows=np.full(3, 10, np.int32)), late(1), sent, told)
    found = summarise(str(tmp_path), {})
    assert found.outcomes() == {"rows": 33, "acked": 20, "published": 2, "failed": 10, "timed_out": 1}
    assert found.outcomes(committed=False) == {"rows": 42, "acked": 30, "published": 0, "failed": 10, "timed_out": 2}
    text = found.text()
    assert "rows         33 of committed writes: 20 acked, 2 published, 10 failed, 1 timed out\n" in text
    assert "42 in attempts that were not committed: 30 acked, 10 failed, 2 timed out, in doubt 2\n" in text
    assert (found.in_doubt, found.latency["flights"], found.slowest_topics[0]["flights"]) == (1, 2, 2)
    assert found.active == pytest.approx(1.0015)
    read = json.loads(found.json())
    assert (read["rows"], read["published"], read["not_committed"]["rows"]) == (33, 2, 42)
    assert sorted((r["committed"], r["flights"]) for r in found.failures) == [
        (False, 1), (False, 2), (True, 1), (True, 1),
    ]  # fmt: skip


def test_publisher_and_topic_events_are_not_flights(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {}, BATCH, 0, 0)
    staging.add_events([LoggedEvent("publisher", "create", T0 - 10**9, publisher_state="LIVE")])
    staging.add_events([LoggedEvent("topic", "PUBLISH_ERROR", T0 + 10**9, "a.b", "TIMEOUT")])
    staging.add_flights(flights(2))
    commit(str(tmp_path), {}, BATCH, staging.close())
    found = summarise(str(tmp_path), {})
    assert found.count() == 2
    assert found.last == "2026-09-21T14:13:20.001000+00:00"


@pytest.mark.parametrize("shape", ["uniform", "long tail", "two humps", "constant"])
def test_percentiles_are_within_the_stated_rank_error(tmp_path: Path, shape: str) -> None:
    random = np.random.default_rng(7)
    n = 50_000
    latency = {
        "uniform": random.integers(100, 100_000, n),
        "long tail": np.minimum(random.lognormal(7, 2, n), 1e9).astype(np.int64),
        "two humps": np.where(random.random(n) < 0.93, random.integers(100, 200, n), random.integers(10**6, 10**7, n)),
        "constant": np.full(n, 500),
    }[shape]
    keep(tmp_path, BATCH, *(flights(5000, str(i), latency_us=part) for i, part in enumerate(np.split(latency, 10))))
    found = summarise(str(tmp_path), {})
    assert found.latency["flights"] == n
    assert found.latency["max"] == latency.max()
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        low, high = np.quantile(latency, [q - PERCENTILE_RANK_ERROR, min(1.0, q + PERCENTILE_RANK_ERROR)])
        assert low - 1 <= found.latency[name] <= high + 1, name


def test_only_acknowledged_flights_have_a_latency(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(2), late(latency_us=np.array([10**9])))
    assert summarise(str(tmp_path), {}).latency == {"flights": 2, "max": 500, "p50": 500, "p90": 500, "p99": 500}


def test_slowest_topics_come_first_up_to_the_limit(tmp_path: Path) -> None:
    for i in range(5):
        topics = pa.array([f"t.{i}"] * 10).dictionary_encode()
        write_id = WriteId(None, f"run-{i}", None, "nats")
        keep(tmp_path, write_id, flights(10, str(i), topic=topics, latency_us=np.full(10, 1000 * (i + 1))))
    found = summarise(str(tmp_path), {}, limit=3).slowest_topics
    assert found == [
        {"topic": f"t.{i}", "flights": 10, "p99": 1000 * (i + 1), "max": 1000 * (i + 1)} for i in (4, 3, 2)
    ]


def test_failures_are_grouped_by_reason_most_frequent_first(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, late(1), flights(4, failed=3))
    names = ("event", "status", "code", "info", "committed", "flights", "example_topic", "example_id")
    assert summarise(str(tmp_path), {}).failures == [
        dict(zip(names, values, strict=True)) for values in (
            ("completed_exceptionally", "PUBLISH_ERROR_NOT_ENTITLED", 403, "denied", True, 3, "orders.new", "id-1"),
            ("timeout", "TIMEOUT", None, "no answer", True, 1, "orders.new", "late-0"),
        )
    ]  # fmt: skip
    assert len(summarise(str(tmp_path), {}, limit=1).failures) == 1


def test_rate_is_of_acknowledged_rows_in_the_time_of_writes_without_the_time_between_them(tmp_path: Path) -> None:
    """Writes of one second from the seconds 0, 0.5 (two) and 100."""
    for number, second in enumerate((100, 0.5, 0, 0.5)):
        times = T0 + round(second * 1e6) + np.linspace(0, 10**6, 60).astype(np.int64)
        write_id = WriteId(None, f"run-{number}", None, "nats")
        keep(tmp_path, write_id, flights(60, str(number), event_time=times, publish_time=times))
    found = summarise(str(tmp_path), {})
    assert found.active == pytest.approx(2.5)
    assert found.rate == pytest.approx(240 / 2.5)
    assert "rate         96 rows/s during the 2.5 s of writes from 2026-09-21T14:13:20" in found.text()


def test_what_an_attempt_stored_is_said_first_where_nothing_was_committed(tmp_path: Path) -> None:
    stage(tmp_path, STREAM, flights(4, failed=1))
    abort(str(tmp_path), {}, STREAM)
    first, second = summarise(str(tmp_path), {}).head()[1:3]
    assert first.startswith("not counted  4 in attempts that were not committed: 3 acked, 1 failed")
    assert second.startswith("rows         0 of committed writes")


def test_json_is_one_line_with_all_fields(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(3, failed=1))
    line = summarise(str(tmp_path), {}).json()
    assert "\n" not in line
    read = json.loads(line)
    assert read["path"] == str(tmp_path)
    assert {*read} == {
        *("path", "version", "events", "latency", "slowest_topics", "failures", "first", "last", "active", "rate"),
        *("duplicates", "found", "in_doubt", "doubled_id", "doubled_ids", "parts_not_added"),
        *("rows", "acked", "published", "failed", "timed_out", "not_committed"),
    }


def test_text_says_what_became_of_the_rows(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(1500, failed=2), late(1))
    text = summarise(str(tmp_path), {}).text()
    assert "1,498 acked, 2 failed, 1 timed out" in text
    assert "p50 0.50 ms" in text
    for title in ("events:", "slowest topics:", "failures:"):
        assert f"\n{title}\n" in text
    assert "denied" in text


def test_log_of_a_run_without_rows_is_empty_and_says_so(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, STREAM, [], app=("query-1", 0))
    found = summarise(str(tmp_path), {})
    assert (found.count(), found.first, found.rate, found.events) == (0, None, None, [])
    assert (found.duplicates, found.in_doubt) == (0, 0)
    assert "0 acked, 0 failed, 0 timed out" in found.text()
    assert json.loads(found.json())["latency"]["flights"] == 0
    assert failed(str(tmp_path), {}) == []
    assert failed_text([]) == "no flight failed"


@pytest.mark.parametrize("failed", [0, 99])
def test_few_rows_have_no_rate_and_none_that_was_acknowledged_no_latency(tmp_path: Path, failed: int) -> None:
    keep(tmp_path, BATCH, flights(99, failed=failed))
    found = summarise(str(tmp_path), {})
    assert (found.rate, "rate " in found.text()) == (None, False)
    assert found.active > 0
    assert (found.latency["flights"], len(found.slowest_topics)) == (99 - failed, not failed)
    assert ("latency" in found.text()) is (not failed)
    assert f"{99 - failed} acked, {failed} failed" in found.text()


def test_failed_flights_come_newest_first_up_to_the_limit(tmp_path: Path) -> None:
    keep(tmp_path, BATCH, flights(5, failed=3))
    assert [r["flight_id"] for r in failed(str(tmp_path), {}, limit=2)] == ["id-4", "id-3"]
    text = failed_text(failed(str(tmp_path), {}))
    assert text.startswith("failed:\n")
    assert text.index("id-4") < text.index("id-2")


def test_failed_flights_have_the_columns_of_their_rows_and_say_what_became_of_them(tmp_path: Path) -> None:
    extra = pa.field('order "Id"', pa.int64())

    def rows(first: int, n: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(first, first + n), pa.int64())], schema=pa.schema([extra]))

    bad = flights(2, "bad", failed=2, extra=rows(7, 2), dead_lettered=np.array([True, False]))
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, bad, extra=[extra]), extra=[extra])
    assert "acked_later" not in failed_text(failed(str(tmp_path), {}))
    again = flights(2, "bad", at=T0 + 10**6, flight_id=pa.array(["bad-1", "good"]), extra=rows(8, 2))
    commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, again, extra=[extra]), extra=[extra])
    found = failed(str(tmp_path), {})
    assert [(r['order "Id"'], r["dead_lettered"], r["acked_later"]) for r in found] == [
        (8, False, True), (7, True, False)
    ]  # fmt: skip
    head = failed_text(found).splitlines()[1].split()
    assert head[:6] == ["status", "info", "topic", "order", '"Id"', "event_time"]
    assert head[-5:] == ["committed", "code", "dead_lettered", "acked_later", "flight_id"]
    assert " code " not in failed_text([{**row, "code": None} for row in found])


def test_another_table_and_no_table_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    for read in (summarise, failed):
        with pytest.raises(FlightLogError, match="no flight log"):
            read(str(tmp_path / "other"), {})
        with pytest.raises(FlightLogError, match="no flight log there"):
            read(str(tmp_path / "none"), {})
    assert not (tmp_path / "none").exists()


# --- What is left to publish, from a flight log and from a dead-letter table ------------------------------------------

NEXT = WriteId(None, "run-8", None, "nats")


def bad(n: int, name: str = "bad", **other: Any) -> Any:
    payload = pa.array([f"{name}-{i}".encode() for i in range(n)], pa.binary())
    return flights(n, name, failed=n, **{"payload": payload, **other})


def left(path: Path) -> list[str]:
    return sorted(unpublished(str(path), {})["id"].to_pylist())


def test_failed_rows_come_back_as_columns_of_the_sink(tmp_path: Path) -> None:
    headers = pa.array([[("h", ["1", "2"])], None], HEADERS_TYPE)
    keep(tmp_path, BATCH, flights(3, "good"), bad(2, headers=headers))
    found = unpublished(str(tmp_path), {})
    assert found.schema == REPLAY
    assert found.sort_by("id").to_pylist() == [
        {"topic": "orders.new", "value": b"bad-0", "headers": [("h", ["1", "2"])], "id": "bad-0"},
        {"topic": "orders.new", "value": b"bad-1", "headers": None, "id": "bad-1"},
    ]


def test_what_failed_or_timed_out_and_was_not_acknowledged_later_is_left(tmp_path: Path) -> None:
    late = bad(1, "late", event=np.array([TIMEOUT], np.uint8), reasons={0: ("TIMEOUT", None, "late")})
    keep(tmp_path, BATCH, bad(3), late)
    keep(tmp_path, NEXT, flights(2, "bad", at=T0 + 1_000_000))
    assert left(tmp_path) == ["bad-2", "late-0"]


def test_attempts_that_were_not_committed_count_both_ways(tmp_path: Path) -> None:
    """An acknowledgement is one whatever became of the batch; so is a failure that nobody has mended."""
    stage(tmp_path, BATCH, bad(2), flights(1, "bad", at=T0 + 1_000_000))
    abort(str(tmp_path), {}, BATCH)
    assert left(tmp_path) == ["bad-1"]


def test_an_attempt_at_a_micro_batch_that_another_one_committed_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without = bad(1, "without", payload=pa.array([None], pa.binary()))
    stage(tmp_path, STREAM, bad(2, "before"), without)
    abort(str(tmp_path), {}, STREAM)
    assert left(tmp_path) == ["before-0", "before-1"]
    assert "1 failed rows are left out" in caplog.text
    caplog.clear()
    commit(str(tmp_path), {}, STREAM, stage(tmp_path, STREAM, flights(2, "after"), bad(1, "still")), app=("query-1", 0))
    assert left(tmp_path) == ["still-0"]
    assert not caplog.text


def test_an_attempt_at_a_batch_that_another_one_committed_leaves_nothing(tmp_path: Path) -> None:
    """Such as one of a task that was tried again, with ids of its own."""
    stage(tmp_path, BATCH, bad(2, "before"))
    keep(tmp_path, BATCH, flights(2, "after"), bad(1, "still"))
    other = WriteId(None, "run-8", 7, "nats")
    stage(tmp_path, other, bad(1, "other"))
    abort(str(tmp_path), {}, other)
    assert left(tmp_path) == ["other-0", "still-0"]


def test_where_nothing_is_acknowledged_what_was_published_later_is_done(tmp_path: Path) -> None:
    """A failed flight that was sent has been published, too, with `flightLogLevel=all`."""

    def sent(at: int) -> Any:
        return flights(2, "bad", event=np.zeros(2, np.uint8), ack_level="none", at=at)

    keep(tmp_path, BATCH, sent(T0 - 500), bad(2))
    assert left(tmp_path) == ["bad-0", "bad-1"]
    again = bad(1, payload=pa.array([None], pa.binary()), at=T0 + 2_000_000)
    keep(tmp_path, NEXT, sent(T0 + 1_000_000), again)
    assert left(tmp_path) == ["bad-0"]


def test_the_job_claims_no_more_than_that_it_has_handed_rows_to_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(str(tmp_path / "log"), {}, BATCH, stage(tmp_path / "log", BATCH, bad(3)))
    conf = tmp_path / "republish.toml"
    conf.write_text(f'[input]\npath = "{tmp_path}/log"\n[mamapub]\nurl = "nats://h"\nonError = "log"\n')
    monkeypatch.setattr("sys.argv", ["republish.py", "--conf-file", str(conf)])
    for name in ("SparkSession", "mama_spark"):
        monkeypatch.setattr(job, name, MagicMock())
    job.main()
    assert capsys.readouterr().out.endswith(
        "\n3 rows handed to the write: its line 'mamapub: ..' says what became of them\n"
    )


def test_same_id_twice_comes_back_once_as_it_was_last(tmp_path: Path) -> None:
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, bad(1, payload=pa.array([b"old"]))))
    newer = bad(1, payload=pa.array([b"new"]), at=T0 + 1_000_000)
    keep(tmp_path, NEXT, newer)
    assert unpublished(str(tmp_path), {})["value"].to_pylist() == [b"new"]


def test_one_id_on_two_topics_is_two_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def on(*topics: str, **other: Any) -> Any:
        ids, names = pa.array(["a"] * len(topics)), pa.array(topics).dictionary_encode()
        return bad(len(topics), **{"flight_id": ids, "topic": names, **other})

    without = on("kr", "us", payload=pa.array([None, None], pa.binary()))
    keep(tmp_path, BATCH, on("eu", "us", "jp"), without)
    acked = flights(1, flight_id=pa.array(["a"]), topic=pa.array(["eu"]).dictionary_encode(), at=T0 + 1_000_000)
    keep(tmp_path, NEXT, acked)
    assert sorted(unpublished(str(tmp_path), {})["topic"].to_pylist()) == ["jp", "us"]
    assert "1 failed rows are left out" in caplog.text, "that of kr"


def test_columns_of_rows_may_have_the_names_of_the_questions(tmp_path: Path) -> None:
    """Of their aliases, which no user knows."""
    names = ["a", "acked", "batch", "bin", "dead", "done", "f", "failed", "log", "lost", "n", "nth", "ok", "written"]
    extra = [pa.field(name, pa.int32()) for name in names]
    row = pa.record_batch([pa.array([1], pa.int32())] * len(extra), schema=pa.schema(extra))
    commit(str(tmp_path), {}, BATCH, stage(tmp_path, BATCH, bad(1, extra=row), extra=extra), extra=extra)
    assert left(tmp_path) == ["bad-0"]
    assert len(read_report(str(tmp_path), {}, datetime.now(UTC)).timeline) == 1
    assert (summarise(str(tmp_path), {}).count(), len(failed(str(tmp_path), {}))) == (1, 1)


def test_rows_without_payload_or_id_cannot_come_back_and_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = pa.array(["a", None, "c", "d"])
    some = bad(4, flight_id=names, payload=pa.array([None, b"x", b"y", None], pa.binary()))
    again = bad(2, flight_id=pa.array(["a", "c"]), payload=pa.array([None, None], pa.binary()))
    keep(tmp_path, BATCH, some, again)
    later = flights(1, flight_id=pa.array(["d"]), at=T0 + 1_000_000)
    keep(tmp_path, NEXT, later)
    assert left(tmp_path) == ["c"]
    assert "2 failed rows are left out" in caplog.text, "a, and the one without an id; d was acknowledged"


def test_dead_letters_are_read_back_each_id_once(tmp_path: Path) -> None:
    for run in (STREAM, BATCH):
        commit_dead_letters(str(tmp_path), {}, run, stage_letters(tmp_path, run, 2))
    found = unpublished(str(tmp_path), {}).sort_by("id").to_pylist()
    assert found == [
        {"topic": "orders.new", "value": f"payload of dead-{i}".encode(), "headers": None, "id": f"dead-{i}"}
        for i in range(2)
    ]


def test_dead_letters_without_payload_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = {"flight_id": ["a", "b"], "topic": ["t", "t"], "payload": [b"x", None], "headers": [None, None]}
    types = [pa.string(), pa.string(), pa.binary(), HEADERS_TYPE]
    times = pa.array([T0, T0], pa.timestamp("us", "UTC"))
    columns = [pa.array(values, kind) for values, kind in zip(rows.values(), types, strict=True)]
    write_deltalake(tmp_path, pa.table([*columns, times], [*rows, "event_time"]))
    assert left(tmp_path) == ["a"]
    assert "1 failed rows are left out, because the table lacks their payload or id: publish" in caplog.text


def test_neither_a_log_nor_dead_letters_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    with pytest.raises(FlightLogError, match="neither a flight log nor a dead-letter table"):
        unpublished(str(tmp_path / "other"), {})
    with pytest.raises(FlightLogError, match="there is no table"):
        unpublished(str(tmp_path / "none"), {})
    assert not (tmp_path / "none").exists()

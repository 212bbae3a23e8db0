"""Buckets that ``mamapub`` writes: what nats-py's KeyValue reads of them, and byte for byte what it writes itself. By
hand, ``nats kv`` (natscli 0.5.1) and the formats read each other's changes, markers and mirrors (on 2.15.1)."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mama_spark.cli.main import main
from mama_spark.nats.publish.answers import NatsAnswers
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.sink.job import PartitionReport
from mama_spark.testing.waiting import eventually
from nats.js.kv import KeyValue

from tests.support.nats.buckets import Row, by_nats_py, make, write
from tests.support.nats.nats_accounts import SharedNatsCluster
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy


def test_headers_that_say_what_columns_say_fail_their_row(nats_server: NatsServer) -> None:
    make(nats_server.url)
    said = {"Nats-Expected-Last-Subject-Sequence": "no number", "kv-operation": "DEL", "Nats-Rollup": "sub", "x": "y"}
    rows = [{"key": "a", "value": b"1", "headers": [entry]} for entry in said.items()]
    report = write(nats_server.url, rows, types={"headers": pa.map_(pa.string(), pa.string())})
    whys = [why for _, _, why in report.counts.first_failures]
    assert (report.counts.acked, [why.split(": ")[2] for why in whys]) == (
        1,
        ["use the column expectedRevision", "use the column operation", "use the column operation"],
    )


#: How nats-py changes keys, and rows that say the same.
SAME: list[tuple[Callable[[KeyValue], Awaitable[Any]], Row]] = [
    (lambda kv: kv.put("a", b"1"), {"key": "a", "value": b"1"}),
    (lambda kv: kv.create("b", b""), {"key": "b", "value": b"", "expectedRevision": 0}),
    (lambda kv: kv.update("a", b"2", last=1), {"key": "a", "value": b"2", "expectedRevision": 1}),
    (
        lambda kv: kv.create("c/d=e", b"3", msg_ttl=90),
        {"key": "c/d=e", "value": b"3", "expectedRevision": 0, "ttl": "90s"},
    ),
    (lambda kv: kv.delete("b"), {"key": "b", "operation": "delete"}),
    (lambda kv: kv.create("b", b"again"), {"key": "b", "value": b"again", "expectedRevision": 0}),
    (lambda kv: kv.delete("b", last=6), {"key": "b", "operation": "delete", "expectedRevision": 6}),
    (lambda kv: kv.purge("b"), {"key": "b", "operation": "purge"}),
    (lambda kv: kv.purge("a", msg_ttl=3600), {"key": "a", "operation": "purge", "ttl": "1h"}),
]


@pytest.mark.parametrize(("dedup", "values"), [("false", pa.binary()), ("true", pa.string())])
def test_the_messages_are_those_of_nats_py(
    nats_server: NatsServer, admin: Admin, dedup: str, values: pa.DataType
) -> None:
    for bucket in ("B", "N"):
        make(nats_server.url, bucket=bucket, history=10)
    for number, (change, row) in enumerate(SAME):
        by_nats_py(nats_server.url, change, "N")
        report = write(nats_server.url, [row], dedup=dedup, idPrefix=str(number), types={"value": values})
        assert (report.counts.acked, report.counts.first_failures) == (1, []), row
    ours, theirs = ([(m.topic[6:], m.headers, m.payload) for m in admin.messages(f"KV_{name}")] for name in "BN")
    for _, headers, _ in ours:
        assert len(headers.pop("Nats-Msg-Id", [])) == (dedup == "true")
    assert ours == theirs


def failures(report: PartitionReport) -> list[str]:
    return [reason for _, _, reason in report.counts.first_failures]


def test_a_conflict_fails_its_row_and_says_which_revision_was_there(nats_server: NatsServer) -> None:
    make(nats_server.url)
    write(nats_server.url, [{"key": "a", "value": b"1"}, {"key": "b", "value": b"1"}])
    report = write(
        nats_server.url,
        [
            {"key": "a", "value": b"2", "expectedRevision": 7},
            {"key": "b", "value": b"2", "expectedRevision": 2},
            {"key": "a", "value": b"3", "expectedRevision": 0},
            {"key": "c", "value": b"3", "expectedRevision": 4},
        ],
        idPrefix="2",
    )
    assert (report.counts.acked, report.counts.row_errors, report.counts.timed_out) == (1, 3, 0)
    assert failures(report) == [
        "PUBLISH_ERROR 10071: the key was at revision 1, and 7 was expected",
        "PUBLISH_ERROR 10071: the key was at revision 1, and it was not to exist",
        "PUBLISH_ERROR 10071: the key had no revision, and 4 was expected",
    ]


@pytest.mark.parametrize("history", [1, 3])
def test_a_repetition_is_no_conflict_with_itself(nats_server: NatsServer, history: int) -> None:
    """Its first attempt was stored, and killed before it knew that."""
    make(nats_server.url, history=history)
    rows = [
        {"key": "new", "value": b"1", "expectedRevision": 0},
        {"key": "changed", "value": b"1", "expectedRevision": 0},
    ]
    write(nats_server.url, rows)
    if history > 1:
        by_nats_py(nats_server.url, lambda kv: kv.put("changed", b"by another"))
    again = write(nats_server.url, rows, attempt=1)
    assert (again.counts.acked, again.counts.duplicates, failures(again)) == (2, 2, [])


def test_check_says_where_a_table_and_a_bucket_differ(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(nats_server.url)
    write(nats_server.url, [{"key": f"k{n}", "value": b"%d" % n} for n in range(1, 21)])
    write(nats_server.url, [{"key": "k1", "operation": "delete"}, {"key": "k2", "value": b"new"}], idPrefix="2")
    as_it_was = {"key": [f"k{n}" for n in range(1, 21)], "revision": range(1, 21), "operation": ["put"] * 20}
    table = pa.table(as_it_was, pa.schema([("key", pa.string()), ("revision", pa.int64()), ("operation", pa.string())]))
    odd = pa.table({"key": [None, "k6", "k13"], "revision": [5, 6, None], "operation": ["put"] * 3}, table.schema)
    write_deltalake(tmp_path / "old", pa.concat_tables([table.slice(0, 12), odd]))

    def check(bucket: str, path: Path) -> tuple[int, str]:
        code = main(["check", nats_server.url, "-o", f"bucket={bucket}", "--table", str(path)])
        return code, "".join(capsys.readouterr()).replace(f"{tmp_path}/", "")

    code, said = check("B", tmp_path / "old")
    assert code == 2, said
    assert [line for line in said.splitlines() if "table old:" in line] == [
        "ok   table old: 9 keys are as in bucket 'B'",
        "BAD  table old: 7 keys in the bucket only: k14, k15, k16, k17, k18, ...",
        "BAD  table old: 2 keys in the table only: k1, None",
        "BAD  table old: 1 key more than once in the table: k6",
        "BAD  table old: 2 keys with another revision: k13 (None, 13 in the bucket), k2 (2, 22 in the bucket)",
    ]
    removed = pa.table({"key": ["k1", "k2"], "revision": [21, 22], "operation": ["delete", "put"]}, table.schema)
    write_deltalake(tmp_path / "new", pa.concat_tables([table.slice(2), removed]))
    code, said = check("B", tmp_path / "new")
    assert (code, "19 keys are as in bucket 'B'" in said) == (0, True)
    assert [check("B", tmp_path / "none")[0], check("nobody", tmp_path / "new")[0]] == [2, 2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bucket": "nobody"}, "option bucket=nobody: the stream 'KV_nobody' is no bucket: it is missing"),
        ({"bucket": "LOG"}, "option bucket=LOG: the stream 'KV_LOG' is no bucket: it keeps any number of messages"),
    ],
)
def test_what_is_no_bucket_is_told(nats_server: NatsServer, admin: Admin, options: dict[str, Any], told: str) -> None:
    admin.create_stream("KV_LOG", ["log"])
    report = write(nats_server.url, [{"key": "a", "value": b"1"}], **options)
    assert told in (report.fatal or "")


def creations(n: int) -> list[Row]:
    return [{"key": f"k{i}", "value": b"%d" % i, "expectedRevision": 0} for i in range(n)]


def test_changes_whose_acknowledgements_are_lost_are_sent_again_without_conflicts(
    nats_server: NatsServer, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(nats_server.url)
    lost, on_acks, on_disconnected = threading.Event(), NatsAnswers.on_acks, NatsAnswers.on_disconnected
    monkeypatch.setattr(NatsAnswers, "on_acks", lambda self, columns: lost.is_set() and on_acks(self, columns))

    def disconnected(*given: Any) -> None:
        lost.set()
        on_disconnected(*given)

    monkeypatch.setattr(NatsAnswers, "on_disconnected", disconnected)
    with Proxy(nats_server.url) as proxy, ThreadPoolExecutor(1) as threads:
        writes = threads.submit(write, proxy.url, creations(600), maxInFlight="256", waitTimeout="30s")
        eventually(lambda: admin.info("KV_B")["state"]["messages"] >= 256, "a window is stored")
        proxy.cut()
        counts = writes.result().counts
    assert (counts.acked, counts.duplicates, counts.row_errors) == (600, 256, 0)
    assert len(admin.messages("KV_B")) == 600


def test_a_replicated_bucket_tells_conflicts_and_repetitions_alike(nats_cluster: SharedNatsCluster) -> None:
    """It refuses a change at once while another of the key is decided, without saying what is there."""
    with Admin(nats_cluster.url) as admin:
        config = {"name": "KV_B", "subjects": ["$KV.B.>"], "num_replicas": 3, "max_msgs_per_subject": 1}
        eventually(lambda: "error" not in admin.api("STREAM.CREATE.KV_B", config), "three peers are known")
        rows = creations(100)
        both = [change for row in rows for change in (row, {**row, "value": b"late"})]
        report = write(nats_cluster.url, both, maxInFlight="200")
        assert (report.counts.acked, report.counts.row_errors) == (100, 100)
        assert all("the key was at revision" in reason for reason in report.counts.reasons)
        again = write(nats_cluster.url, rows, attempt=1)
        assert (again.counts.acked, again.counts.duplicates, len(admin.messages("KV_B"))) == (100, 100, 100)


def test_flight_log_and_dead_letters_say_what_became_of_each_change(
    nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    make(nats_server.url)
    admin.create_stream("DEAD", ["dead"])
    letters: dict[str, Any] = {"onError": "deadletter", "deadLetterTable": f"{tmp_path}/dead"}
    letters["deadLetterTopic"] = "dead"
    rows: list[dict[str, Any]] = [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": b"2", "expectedRevision": 7},
        {"key": "a..b", "value": b"3"},
        {"key": "b", "operation": "delete"},
    ]
    write(nats_server.url, rows, flightLog=f"{tmp_path}/log", **letters)
    names = ("topic", "event", "sequence", "info")
    flights = DeltaTable(f"{tmp_path}/log").to_pyarrow_table().sort_by("topic")
    told = [tuple(row[name] for name in names) for row in flights.to_pylist() if row["kind"] == "flight"]
    conflict = "the key was at revision 1, and 7 was expected"
    assert sorted(told, key=str) == [
        ("$KV.B.a", "acked", 1, None),
        ("$KV.B.a", "completed_exceptionally", None, conflict),
        ("$KV.B.a..b", "completed_exceptionally", None, "topic '$KV.B.a..b' has an empty token"),
        ("$KV.B.b", "acked", 2, None),
    ]
    dead = DeltaTable(f"{tmp_path}/dead").to_pyarrow_table().sort_by("topic").to_pylist()
    assert [(row["payload"], row["info"]) for row in dead][:1] == [(b"2", conflict)]
    sent = {m.headers["Mama-Error-Topic"][0]: (m.payload, m.headers["Mama-Error-Info"]) for m in admin.messages("DEAD")}
    assert sent == {"$KV.B.a": (b"2", [conflict]), "$KV.B.a..b": (b"3", ["topic '$KV.B.a..b' has an empty token"])}

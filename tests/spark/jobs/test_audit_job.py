"""``jobs/audit.py``: the comparison of ``mama audit``, by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.flightlog.commit import commit
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import STREAM, Query, rows
from tests.support.spark.spark_jobs import conf_file, in_session


@pytest.mark.thorough
def test_audit_job_finds_what_the_command_finds(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_stream(STREAM, ["once.>"], allow_batched=True)
    log, ids = str(tmp_path / "log"), {"dedup": "false", "exactlyOnce": "false"}
    for batch, options in enumerate(({}, {**ids, "ackMode": "message"}, {**ids, "ackMode": "batch"})):
        report = Query(nats_server.url, {**options, "flightLog": log}, batch=batch).attempt(rows(0, 100))
        assert report.write_id is not None
        assert report.counts.acked == 100
        commit(log, {}, report.write_id, report.parts)
    admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": 17})
    admin.update_stream(STREAM, duplicate_window=int(1e8))
    (id_,) = admin.messages(STREAM)[0].headers["Nats-Msg-Id"]
    admin.publish("once.0", b"row 0", Nats_Msg_Id=id_[:-1] + "7")
    url = {"url": nats_server.url}
    conf = conf_file(tmp_path / "audit.toml", input={"path": log}, mamasub=url, audit={"foreign": True})
    with pytest.raises(SystemExit) as ended:
        in_session(spark, "audit", conf)
    shown = capsys.readouterr().out
    assert (ended.value.code, "300 messages read" in shown) == (1, True)
    for line in (
        "matched      99 by id and content (content)",
        "matched      100 by topic and size, at their sequence (place)",
        "matched      100 by the number of messages with their topic and size (counted)",
        "FOUND        1 acknowledged, and not stored (missing)",
        "FOUND        1 stored with an id of these writes, and the log does not say so (unlogged)",
    ):
        assert line in shown

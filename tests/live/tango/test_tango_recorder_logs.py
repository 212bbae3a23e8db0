"""Tango recorder whose log is full, unavailable or of Malamute: every event is in the log or in a gap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from mama_spark.cli.commands.record import log_options, record
from mama_spark.cli.main import parse
from mama_spark.console.signals import StopEvent
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.log.records import GapCause, RecordKind
from mama_spark.testing.waiting import until

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port
from tests.support.tango_processes.recorder import (
    STREAM,
    RecorderLog,
    RecorderThread,
    accounted,
    consecutive,
    measured,
    settings,
    words,
)
from tests.support.tango_processes.servers import TIMEOUT, TangoServer


@pytest.mark.spec("TG-44", "TG-46")
def test_a_durable_stream_of_malamute_is_a_log_too(lab: TangoServer, tmp_path: Path) -> None:
    """The recorder is stopped, and the broker is killed."""
    with RestartableMalamuteBroker(tmp_path / "broker") as room:
        log = RecorderLog(room)
        with RecorderThread(log.options, settings(lab)):
            stored = log.push_until(lab, 10)
        for _ in range(7):
            lab.push("double", 3.0)
        with RecorderThread(log.options, settings(lab)) as second:
            log.push_until(lab, 3)
            room.kill()
            for value in range(200):
                lab.push("double", float(value))
            room.start()
            until(lambda: log.records(RecordKind.EVENT)[-1].reading == 199.0)
        assert second.whole
        records = log.records()
    assert set(stored) <= {r.ctr for r in records if r.kind is RecordKind.EVENT}
    (gap,) = [r for r in records if r.kind is RecordKind.GAP]
    assert (gap.cause, gap.count >= 7) == (GapCause.AWAY, True)
    assert consecutive(accounted(records))
    assert records[-1].kind is RecordKind.STOPPED


@pytest.mark.spec("TG-46")
def test_records_rejected_by_a_full_log_are_reported_when_it_has_space_again(
    log: RecorderLog, lab: TangoServer
) -> None:
    limits = {"max_bytes": 20_000, "discard": "new", "allow_batched": True}
    log.admin.create_stream(STREAM, ["tango.>"], **limits)
    metrics = f"127.0.0.1:{lasting_port()}"
    with RecorderThread(log.options, settings(lab, metrics=metrics)) as running:
        until(lambda: measured(metrics, "refused_total") > 20, lambda: lab.push("double", 1.0))
        log.admin.update_stream(STREAM, max_bytes=20_000_000)
        until(lambda: [r for r in log.records(RecordKind.GAP) if r.cause is GapCause.REFUSED])
        log.push_until(lab, 3)
    assert running.whole
    records = log.records()
    assert consecutive(sorted(accounted(records)))
    events = sum(r.count for r in records if r.kind is RecordKind.GAP)
    assert events, "of the records that were refused; the others told a device's state"


def test_a_log_that_may_not_be_written_to_ends_the_recorder_with_the_reason(lab: TangoServer, tmp_path: Path) -> None:
    users = """authorization { users = [
        { user: boss, password: b }
        { user: recorder, password: r, permissions: { publish: { deny: "tango.>" } } }
    ] }"""
    with NatsServer(tmp_path / "nats", config=users) as server:
        with Admin(server.url, user="boss", password="b") as admin:
            admin.create_stream(STREAM, ["tango.>"], allow_batched=True)
        options = log_options({"url": f"{server.url}/{STREAM}", "user": "recorder", "password": "r"})
        with pytest.raises(ConfigError, match=r"the log rejects records: .* to publish to 'tango\."):
            record(settings(lab), options, lambda: False, lambda text: None)


@pytest.mark.own_server
def test_a_recorder_that_ends_during_an_outage_of_the_log_reports_unstored_records(
    log: RecorderLog,
    lab: TangoServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = StopEvent()
    monkeypatch.setattr("mama_spark.cli.commands.record.stop_on_signals", lambda: nullcontext(stop))
    metrics = f"127.0.0.1:{lasting_port()}"
    args = parse(words(log, lab, tmp_path, drain="1s", metrics=metrics))
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(args.run, args)
        try:
            log.push_until(lab, 3)
            log.room.kill()
            until(lambda: measured(metrics, "waiting") > 5, lambda: lab.push("double", 2.0))
        finally:
            stop.set()
        assert code.result(TIMEOUT) == 1
    assert " 0 waiting" not in capsys.readouterr().out.splitlines()[-1]

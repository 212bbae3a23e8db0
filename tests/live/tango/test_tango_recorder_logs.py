"""Tango recorders whose log is full, unavailable or of Malamute, and several of one log."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from mama_spark.cli.commands.record import log_options, record
from mama_spark.cli.main import parse
from mama_spark.console.signals import StopEvent
from mama_spark.contracts.bridge import DiscoveryEventKind
from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import DiscoveryOptions
from mama_spark.registry import discovery_bridge
from mama_spark.tango.client.device_proxy import device_names
from mama_spark.tango.log.records import GapCause, RecordKind
from mama_spark.tango.recorder.settings import TangoRecorderSettings
from mama_spark.testing.waiting import eventually, until

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker, RestartableNatsServer
from tests.support.nats.nats_servers import Admin
from tests.support.ports import lasting_port
from tests.support.tango.tango import RELEASES, DeviceServers
from tests.support.tango_processes import recorder
from tests.support.tango_processes.recorder import STREAM, RecorderLog, RecorderThread, accounted, consecutive, settings
from tests.support.tango_processes.servers import TIMEOUT, TangoDatabase, TangoServer


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
        until(lambda: recorder.measured(metrics, "refused_total") > 20, lambda: lab.push("double", 1.0))
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
    args = parse(recorder.words(log, lab, tmp_path, drain="1s", metrics=metrics))
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(args.run, args)
        try:
            log.push_until(lab, 3)
            log.room.kill()
            until(lambda: recorder.measured(metrics, "waiting") > 5, lambda: lab.push("double", 2.0))
        finally:
            stop.set()
        assert code.result(TIMEOUT) == 1
    assert " 0 waiting" not in capsys.readouterr().out.splitlines()[-1]


# --- Several recorders write one log: each goes on where it was, and readers see the devices of all -------------------


@pytest.fixture
def two(labs: DeviceServers) -> tuple[TangoServer, TangoServer]:
    """A device each."""
    both = labs.fresh(2)
    return both.only(both.devices[0]), both.only(both.devices[1])


@pytest.fixture(params=RELEASES)
def two_of_release(
    request: pytest.FixtureRequest, tango_database: TangoDatabase, tmp_path: Path
) -> Iterator[tuple[TangoServer, TangoServer]]:
    """A device each; of PyTango 9.3.6 with a database, since it counts events only there."""
    if request.param == 10:
        yield request.getfixturevalue("two")
        return
    devices = ["several/old/1", "several/old/2"]
    with TangoServer(tmp_path, devices, database=tango_database, instance="several9", release=9) as server:
        yield server.only(devices[0]), server.only(devices[1])


def of(lab: TangoServer, name: str, **more: object) -> TangoRecorderSettings:
    return settings(lab, name=name, stateEvery="200ms", **more)


def image(log: RecorderLog) -> dict[str, str]:
    """Device -> its state, as readers of the log see them."""
    url = log.given["url"].rpartition("/")[0]
    bridge = discovery_bridge(DiscoveryOptions.parse({"url": url, "stream": STREAM, "tango": "true"}))
    bridge.open()
    try:
        records = [one for one in bridge.image() if one.kind is DiscoveryEventKind.RECORD]
    finally:
        bridge.close()
    return {
        one.source.name.rpartition("/")[2]: RecordKind(one.payload[5]).name
        for one in records
        if one.source and one.payload
    }


def test_each_recorder_goes_on_where_it_was_and_says_nothing_about_the_devices_of_the_other(
    log: RecorderLog, two_of_release: tuple[TangoServer, TangoServer]
) -> None:
    first, second = two_of_release
    with RecorderThread(log.options, of(first, "first")):
        log.push_until(first, 2)
        with RecorderThread(log.options, of(second, "second")):
            log.push_until(second, 2)
    for _ in range(3):
        first.push("double", 7.0)  # while no recorder runs
    with RecorderThread(log.options, of(first, "first")), RecorderThread(log.options, of(second, "second")):
        log.push_until(first, 2)
        log.push_until(second, 2)
    records = log.records()
    assert [r for r in records if r.kind is RecordKind.OFFLINE] == []
    for lab in two_of_release:
        mine = [r for r in records if r.topic.count(".") == 6 and r.place.device == lab.devices[0]]
        assert consecutive(accounted(mine))


def test_readers_see_the_devices_of_all_recorders(log: RecorderLog, two: tuple[TangoServer, TangoServer]) -> None:
    names = {lab.devices[0].rpartition("/")[2] + "#dbase=no": "ONLINE" for lab in two}
    with RecorderThread(log.options, of(two[0], "first")), RecorderThread(log.options, of(two[1], "second")):
        log.push_until(two[0], 1)
        log.push_until(two[1], 1)
        eventually(lambda: image(log) == names, "both devices")
        before = len(log.records(RecordKind.STATE))
        until(lambda: len(log.records(RecordKind.STATE)) > before + 4)  # each has written its state again
        assert image(log) == names
    assert image(log) == names


def test_a_recorder_of_the_same_devices_is_refused_and_one_with_another_prefix_is_not(
    log: RecorderLog, two: tuple[TangoServer, TangoServer]
) -> None:
    lab = two[0]
    with RecorderThread(log.options, of(lab, "first")):
        log.push_until(lab, 1)
        with pytest.raises(ConfigError, match=f"the recorder first of this log records {lab.devices[0]} too"):
            record(of(lab, "second"), log.options, lambda: False, lambda text: None)
    with RecorderThread(log.options, of(lab, "second")):  # the first one has stopped
        log.push_until(lab, 1)


def test_of_two_recorders_with_one_name_the_later_goes_on(
    log: RecorderLog, two: tuple[TangoServer, TangoServer]
) -> None:
    lab = two[0]
    earlier = RecorderThread(log.options, of(lab, "same"))
    log.push_until(lab, 1)
    with RecorderThread(log.options, of(lab, "same")):
        earlier.wait()
        assert isinstance(earlier.error, ConfigError)
        assert "another recorder with the name same has started with this log" in str(earlier.error)
        log.push_until(lab, 3)


DEVICES = ("names/lab/1", "names/lab/2", "other/lab/1")


@pytest.mark.spec("TG-09", "TG-21")
def test_patterns_are_the_devices_of_the_database_also_later(
    tango_database: TangoDatabase, nats_server: NatsServer, tmp_path: Path
) -> None:
    """The recorder reads device names from the database, at its start and later."""
    host = tango_database.host

    def server(instance: str, *devices: str) -> TangoServer:
        return TangoServer(tmp_path / instance, devices, database=tango_database, instance=instance)

    def names(pattern: str) -> set[str]:
        return device_names(host, pattern, TIMEOUT)

    with (
        RestartableNatsServer(nats_server) as room,
        server("names", *DEVICES) as lab,
        server("more", "names/lab/3") as more,
    ):
        more.stop()  # known to the database, but away
        log = RecorderLog(room)

        def recorded() -> set[str]:
            return {r.place.device for r in log.records(RecordKind.EVENT)}

        def push() -> None:
            for device in DEVICES:
                lab.do("push", "double", device=device, event="change", value=1.0)

        with RecorderThread(log.options, settings(lab, devices="names/lab/*", attributes="dou*le", lookEvery="200ms")):
            until(lambda: recorded() == {"names/lab/1", "names/lab/2"}, push)
            more.start()
            until(lambda: "names/lab/3" in recorded(), lambda: more.push("double", 2.0))
            with server("new", "names/lab/4") as new:
                until(lambda: "names/lab/4" in recorded(), lambda: new.push("double", 3.0))
        assert recorded() == {f"names/lab/{n}" for n in (1, 2, 3, 4)}
        of_one = [r for r in log.records() if r.topic.startswith(f"tango.{host.replace('.', '%2E')}.names.lab.1.")]
        assert consecutive(accounted(of_one))

        assert names("names/lab/*") == {f"names/lab/{n}" for n in (1, 2, 3, 4)}
        assert names("[no]*/lab/1") == names("names/lab/1") | names("other/lab/1") == {"names/lab/1", "other/lab/1"}
        assert names("names/lab/[13]") == {"names/lab/1", "names/lab/3"}
        assert names("na?es/lab/?") == names("names/lab/*")
        assert names("none/*/*") == set()
        assert names("*/*/*") >= set(DEVICES)
        assert not any(name.startswith("dserver/") for name in names("*/*/*"))
        assert names("dserver/lab/names") == {"dserver/lab/names"}
    with pytest.raises(MamaError):
        device_names(f"127.0.0.1:{lasting_port()}", "*/*/*", TIMEOUT)

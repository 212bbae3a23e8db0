"""``mama top`` over NATS, Malamute and a recorder's log; its keys; and its end in a real terminal."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.cli.main import main
from mama_spark.cli.top.app import DetailScreen, LiveViewApp
from mama_spark.cli.top.collector import Collector
from mama_spark.cli.top.model import LiveModel
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.tango.log.records import RecordKind, device_topic, record_topic
from mama_spark.testing.waiting import eventually
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk, key
from tests.support.tango.records import encode_one


@pytest.fixture
def server(nats_server: NatsServer) -> NatsServer:
    create_streams(nats_server.url)
    return nats_server


@pytest.fixture
def announcer(server: NatsServer) -> Iterator[ForeignAnnouncer]:
    """A source, a stream with 30 messages and a limit, and a reader that has read none of them."""
    with ForeignAnnouncer(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"], max_msgs=60)
        client.say(desk(1))
        client.live(key(desk(1)), 60)
        client.publish_all((f"orders.{i}", b"x" * 100, None) for i in range(30))
        client.consumer("ORDERS", "audit", "orders.*")
        yield client


def once(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["top", *words, "--once", "--json", "--interval", "100ms"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.own_server
def test_over_nats(server: NatsServer, announcer: ForeignAnnouncer, capsys: pytest.CaptureFixture[str]) -> None:
    told = once(capsys, server.url.replace("nats://", "nats://user:secret@"))
    assert [(one["source"], one["id"], one["state"]) for one in told["sources"]] == [("desk", "1", "ONLINE")]
    assert told["readers"] == [{"reader": "audit", "stream": "ORDERS", "lag": 30, "unacknowledged": 0}]
    [orders] = [one for one in told["streams"] if one["stream"] == "ORDERS"]
    assert (orders["messages"], orders["limits"], orders["readers"]) == (30, "50 % of 60 messages", 1)
    assert orders["bytes"] > 3000
    assert "secret" not in str(told)
    assert main(["top", server.url, "--once"]) == 0
    assert "desk" in capsys.readouterr().out


def publish_slowly(url: str, stop: threading.Event) -> None:
    """An announced write, until ``stop``."""
    o = SinkOptions.parse(
        {"url": url, "announce": "true", "sourceName": "live", "announceCounts": "100ms", "maxRatePerPartition": "500"}
    )
    plan = ColumnPlan("topic", (), "value", (), None, "", None, ())

    def rows() -> Iterator[pa.RecordBatch]:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            values = [b"%d-%d" % (number, i) for i in range(100)]
            yield pa.record_batch({"topic": ["orders.live"] * 100, "value": values})

    publish_partition(
        SinkJob(o, plan, False, "run", ()), TaskInfo(0, 0, None, None, None, False, "app", "app-1"), rows()
    )


def test_publishers_that_announce_their_counts(
    server: NatsServer, announcer: ForeignAnnouncer, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    writing = threading.Thread(target=publish_slowly, args=(server.url, stop))
    writing.start()

    def published() -> dict[str, Any] | None:
        told = once(capsys, server.url)
        return told if any(row["acked/s"] for row in told["publishers"]) else None

    try:
        told = eventually(published, "the rate of the publisher")
        assert told is not None
        [row] = told["publishers"]
        assert (row["source"], row["state"], row["failed"]) == ("live", "LIVE", 0)
        assert row["acked"] > 0
        assert row["in flight"] is not None
        assert told["totals"]["acked_per_second"] == row["acked/s"]
    finally:
        stop.set()
        writing.join(60)


def test_over_malamute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RestartableMalamuteBroker(tmp_path / "broker") as broker:
        assert main(["pub", "orders.new", "x", "--url", broker.url, "-o", "stream=ORDERS"]) == 0
        capsys.readouterr()
        told = once(capsys, broker.url)
        assert [(one["stream"], one["messages"]) for one in told["streams"]] == [("ORDERS", 1)]


def test_over_the_log_of_a_recorder(
    server: NatsServer, announcer: ForeignAnnouncer, capsys: pytest.CaptureFixture[str]
) -> None:
    announcer.create_stream("TANGO", ["tango.>"])
    now = time.time_ns()
    device = device_topic("host:10000", "lab/gauge/1", True)
    frames = (device.encode(), b"\1", b"", b"")
    announcer.publish(record_topic(device), encode_one(RecordKind.ONLINE, now, frames))
    told = once(capsys, f"{server.url}/TANGO", "-o", "tango=true")
    assert [(one["source"], one["state"]) for one in told["sources"]] == [("tango://host:10000/lab/gauge/1", "ONLINE")]
    assert "TANGO" in {one["stream"] for one in told["streams"]}


def test_nobody_there_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "nats://127.0.0.1:1", "--once", "-o", "connectTimeout=200ms"]) == 2
    assert capsys.readouterr().err.startswith("mama: no NATS server answers within 0.2 s")


def test_a_server_without_streams_of_discovery_still_shows_streams(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with ForeignAnnouncer(nats_server.url) as client:
        client.create_stream("PLAIN", ["plain"])
        assert [one["stream"] for one in once(capsys, nats_server.url)["streams"]] == ["PLAIN"]


# --- keys --------------------------------------------------------------------------------------------------------


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    """Let the screen run until it is so."""
    for _ in range(600):
        if true():
            return
        await pilot.pause(0.1)
    raise AssertionError("it did not come")


def on_screen(server: NatsServer, test: Callable[[LiveViewApp, Pilot[None]], Awaitable[None]]) -> None:
    collector = Collector({"url": server.url, "waitTimeout": "2s"}, LiveModel())

    async def run() -> None:
        app = LiveViewApp(collector, 0.2)
        async with app.run_test(size=(80, 24)) as pilot:
            await test(app, pilot)

    try:
        asyncio.run(run())
    finally:
        collector.close()


def test_keys_choose_sort_filter_pause_and_show_details(server: NatsServer, announcer: ForeignAnnouncer) -> None:
    async def test(app: LiveViewApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: [row[0] for row in app.rows] == ["desk"])
        await pilot.press("4")
        await until(pilot, lambda: "ORDERS" in [row[0] for row in app.rows])
        await pilot.press("slash", *"orders", "enter")
        await until(pilot, lambda: [row[0] for row in app.rows] == ["ORDERS"])
        assert isinstance(app.focused, DataTable), "Enter goes back to the table"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DetailScreen))
        await pilot.press("slash", "escape")
        await until(pilot, lambda: len(app.rows) > 1)
        assert isinstance(app.focused, DataTable), "so does Escape, and all rows are back"
        await pilot.press("s", "s")
        column = app.sort_by["streams"][0]
        await until(
            pilot, lambda: [row[column] for row in app.rows] == sorted((r[column] for r in app.rows), reverse=True)
        )
        await pilot.press("r", "s")
        assert app.sort_by["streams"] == (column + 1, False)
        await pilot.press("p")
        shown = list(app.rows)
        announcer.publish("orders.more", b"")
        await until(pilot, lambda: any(row[3] == 31 for row in app.model.table("streams")))
        assert app.rows == shown
        assert str(app.query_one("#head", Static).render()).startswith("PAUSED  1/1 sources online")
        await pilot.press("p", "5")
        announcer.publish_events(key(desk(1)), EventRecord("publisher", "live", 1_000_000, "desk", 1, publisher="p/0"))
        await until(pilot, lambda: any(row[1:3] == ("publisher", "live") for row in app.rows))

    on_screen(server, test)


@pytest.mark.own_server
def test_an_outage_is_said_and_ends(server: NatsServer) -> None:
    async def test(app: LiveViewApp, pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await until(pilot, lambda: app.rows)
        server.stop()
        problem = app.query_one("#problem", Static)
        await until(pilot, lambda: problem.has_class("shown"))
        server.start()
        await until(pilot, lambda: not problem.has_class("shown"))

    on_screen(server, test)


@pytest.mark.thorough
def test_a_terminal_of_80_by_24_shows_it_and_is_as_before_afterwards(
    server: NatsServer, announcer: ForeignAnnouncer, tmp_path: Path
) -> None:
    assert shutil.which("tmux"), "tmux is missing: run make setup"
    socket = str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        return subprocess.run(["tmux", "-S", socket, *words], capture_output=True, text=True, check=True).stdout

    def screen() -> str:
        return tmux("capture-pane", "-p")

    tmux("new-session", "-d", "-x", "80", "-y", "24", "env PS1='$ ' sh")
    try:
        tmux("send-keys", f"{sys.executable} -m mama_spark.cli top {server.url}; echo ended $?", "Enter")
        eventually(lambda: "ONLINE" in screen(), "the source")
        eventually(lambda: "1/1 sources online" in screen(), "the head")
        eventually(lambda: " failed  lag " in screen(), "no number is cut")
        eventually(lambda: " details " in screen(), "the keys at the bottom")
        tmux("send-keys", "4")
        eventually(lambda: "ORDERS" in screen(), "the stream")
        assert max(map(len, screen().splitlines())) <= 80
        tmux("send-keys", "q")
        eventually(lambda: "ended 0" in screen(), "the end")
        eventually(lambda: "ORDERS" not in screen(), "the screen of before is back")
    finally:
        tmux("kill-server")

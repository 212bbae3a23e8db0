"""``mama sources`` and ``mama events`` against a real server, as processes of their own where they run until ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from mama_spark.cli.commands.events import line_of as event_line
from mama_spark.cli.commands.sources import line_of as source_line
from mama_spark.cli.main import main
from mama_spark.console import discovery_follow as follow
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.discovery.discovery_rows import DiscoveryRow
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk
from tests.support.nats.nats_servers import Admin

DESK = SourceKey("desk", 7)


@pytest.fixture
def stranger(nats_server: NatsServer) -> Iterator[ForeignAnnouncer]:
    """The streams of discovery are there."""
    with ForeignAnnouncer(nats_server.url) as client:
        create_streams(nats_server.url)
        yield client


class Command:
    """A running ``mama``, which prints into files."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.out, self.err = (folder / f"{''.join(words[:2])}.{kind}" for kind in ("out", "err"))
        command = [sys.executable, "-u", "-m", "mama_spark.cli", *words]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err)

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def wait(self, text: str) -> str:
        """The first line with ``text`` in it."""

        def found() -> list[str]:
            lines = [line for line in self.lines() if text in line]
            assert lines or self.process.poll() is None, self.err.read_text()
            return lines

        return str(eventually(found, f"{text!r} in the output")[0])

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_looking_creates_nothing_and_the_streams_are_made_when_they_are_asked_for(
    nats_server: NatsServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def streams() -> list[str]:
        with Admin(nats_server.url) as admin:
            return sorted(admin.api("STREAM.NAMES").get("streams") or [])

    def mama(*words: str) -> int:
        return main([*words, "--url", nats_server.url])

    assert mama("sources", "--once") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 sources"
    assert "no streams MAMA_SOURCES and MAMA_EVENTS yet" in caplog.text
    assert mama("sub", "orders.>") != 0
    assert mama("check", "-o", "topic=orders.a", "-o", "createStream=true") == 0
    assert streams() == []
    capsys.readouterr()
    assert mama("sources", "--once", "--create-streams") == 0
    assert capsys.readouterr().err == ""
    assert streams() == ["MAMA_ADVISORIES", "MAMA_EVENTS", "MAMA_SOURCES"]


def test_sources_shows_the_image_and_then_what_changes_until_ctrl_c(
    nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    stranger.say(desk(7, qos_rate="BEST"))
    stranger.say(b"junk", SourceKey("bad", 1))
    with Command(tmp_path, "sources", "--url", nats_server.url) as command:
        assert command.wait("SOURCE").split()[:4] == ["SOURCE", "ID", "STATE", "DATA"]
        assert command.wait("desk").split()[:5] == ["desk", "7", "ONLINE", "OK", "BEST"]
        assert "0x6a" in command.wait("bad")
        command.wait("2 sources")
        stranger.say(desk(8))
        stranger.live(DESK, 2)
        command.wait("online     desk 8  ONLINE OK")
        command.wait("suspect    desk 7  ONLINE SUSPECT")
        command.wait("offline    desk 7  OFFLINE SUSPECT")
        assert command.interrupt() == 130
        assert command.err.read_text() == ""


def test_sources_once_ends_by_itself_and_json_has_the_columns_of_the_rows(
    nats_server: NatsServer, stranger: ForeignAnnouncer, capsys: pytest.CaptureFixture[str]
) -> None:
    most = 2**64 - 1
    stranger.say(desk(most, capabilities={"Region": "eu"}))
    assert main(["sources", "--url", nats_server.url, "--once", "--json"]) == 0
    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (told["kind"], told["source_name"], told["source_id"]) == ("source", "desk", str(most))
    assert told["capabilities"] == {"Region": "eu"}
    assert told["event_time"].endswith("+00:00")
    assert set(told) <= set(DiscoveryRow._fields)


@pytest.mark.thorough
def test_events_come_as_they_happen_or_from_the_earliest_on(
    nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    stranger.publish_events(DESK, EventRecord("publisher", "create", 1, topic="early"))
    error = EventRecord("publisher", "error", 1, topic="a.b", status="NOT_ENTITLED", code=403, info="no\x1b[2J")
    with (
        Command(tmp_path, "events", "--from", "earliest", "--url", nats_server.url) as early,
        Command(tmp_path, "events", "--json", "--url", nats_server.url) as late,
    ):
        assert "create" in early.wait("early")
        until = iter(range(1, 10_000))
        eventually(lambda: late.lines() or not stranger.publish_events(DESK, _late(next(until))), "it follows")
        stranger.publish_events(DESK, error)
        assert early.wait("a.b").split("  ", 1)[1] == "publisher  error  a.b  (desk 7)  NOT_ENTITLED 403  no\ufffd[2J"
        assert json.loads(late.wait('"a.b"'))["info"] == "no\x1b[2J"
        assert not [line for line in late.lines() if '"early"' in line]
        assert late.interrupt() == 130


def _late(n: int) -> EventRecord:
    return EventRecord("topic", "SUBSCRIBED", n, topic=f"t{n}")


@pytest.mark.parametrize(
    "words", [("sources",), pytest.param(("events", "--from", "earliest"), marks=pytest.mark.thorough)]
)
def test_a_closed_pipe_ends_the_command_although_nothing_happens(
    nats_server: NatsServer, stranger: ForeignAnnouncer, words: tuple[str, ...]
) -> None:
    stranger.publish_events(DESK, EventRecord("publisher", "create", 1, topic="only"))
    command = [sys.executable, "-m", "mama_spark.cli", *words, "--url", nats_server.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    try:
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.stderr.close()


def test_lines_of_losses_and_of_hostile_names_are_harmless() -> None:
    gap = DiscoveryRow("gap", "gap", gap_from=3, gap_to=9, origin="MAMA_EVENTS", event_time=0)
    for line in (source_line(gap), event_line(gap)):
        assert "records 3 to 9 of MAMA_EVENTS were lost" in line
    hostile: dict[str, Any] = {"source_name": "a\nb\x07", "info": "c\x1b]0;d"}
    told = source_line(DiscoveryRow("source", "online", **hostile))
    assert told.isprintable()
    assert (
        json.loads(follow.as_json(DiscoveryRow("source", "online", raw=b"\xff", event_time=5, **hostile)))["raw"]
        == "/w=="
    )

"""Name server, recorders and publishers in processes of their own that are killed and come back."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.openmama.wire.settings import PeerSettings
from mama_spark.testing.waiting import eventually

from tests.support.openmama.network import Watched, peer
from tests.support.openmama.recorder import NatsRecordedLog, RecordedLog, basic
from tests.support.ports import lasting_port

SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def mama(until: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has said so; killed at the end, if it has not ended."""
    process = subprocess.Popen([sys.executable, "-m", "mama_spark.cli", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if until in line:
                break
        else:
            raise AssertionError(f"mama {' '.join(words)} ended")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def numbers(log: RecordedLog, sender: str = "5") -> list[int]:
    return [row["seq_num"] for row in log.rows("message") if row["sender"] == sender]


def publish_until_killed(url: str, pipe: Connection, sender: int) -> None:
    """A publisher in a process of its own: says its uuid, and counts for as long as it lives."""
    one = OpenMamaPeer(PeerSettings.from_urls([url]))
    one.open()
    pipe.send(one.uuid)
    number = 0
    while True:
        one.poll(0.02)
        if one.wanted("OM.A"):
            number += 1
            one.publish("OM.A", basic(number, sender))


@contextmanager
def publisher(url: str, sender: int) -> Iterator[tuple[int, str]]:
    """Process and uuid; killed at the end."""
    mine, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=publish_until_killed, args=(url, theirs, sender), daemon=True)
    process.start()
    try:
        yield process.pid or 0, mine.recv()
    finally:
        process.kill()
        process.join(30)


@pytest.mark.thorough
@pytest.mark.spec("OW12", "OW25", "OW27", "OW29")
def test_kills_of_recorder_name_server_and_publisher(nats_server: NatsServer, tmp_path: Path) -> None:
    port = lasting_port()
    url = f"oz://127.0.0.1:{port}"
    with ExitStack() as here:
        names = here.enter_context(ExitStack())
        names.enter_context(mama("name server at", "nsd", "-p", str(port)))
        words = ("record", "--url", url, "--topic", "OM.A", "-o", "createStream=true", "--to")
        first = here.enter_context(ExitStack())
        first.enter_context(mama("ready", *words, f"{nats_server.url}/ONE"))
        conf = tmp_path / "two.toml"
        conf.write_text('[recorder]\nname = "other"\nprefix = "other"\n')
        here.enter_context(mama("ready", *words, f"{nats_server.url}/TWO", "--conf-file", str(conf)))
        one, two = NatsRecordedLog(nats_server, "ONE"), NatsRecordedLog(nats_server, "TWO")
        here.callback(one.close)
        here.callback(two.close)
        mine = here.enter_context(peer(url))
        watched = Watched(mine)

        def both_there() -> bool:
            return mine.readers.readers(b"OM.A\0") == 2

        watched.until(both_there, "both recorders subscribe")
        assert not mine.wanted("OM.AB"), "a neighbour of the topic"
        for number in range(1, 101):
            assert mine.publish("OM.A", basic(number))
        eventually(lambda: numbers(one) == numbers(two) == list(range(1, 101)), "two recorders have everything")

        first.close()  # killed
        watched.until(lambda: mine.readers.readers(b"OM.A\0") == 1, "one recorder is away")
        for number in range(101, 111):
            assert mine.publish("OM.A", basic(number))
        here.enter_context(mama("ready", *words, f"{nats_server.url}/ONE"))
        watched.until(both_there, "it is back")
        assert mine.publish("OM.A", basic(111))
        eventually(lambda: numbers(one)[-1] == numbers(two)[-1] == 111, "it goes on")
        assert [(g["gap_from"], g["gap_to"], g["cause"]) for g in one.rows("gap")] == [(101, 110, "away")]
        assert two.rows("gap") == []

        names.close()  # killed
        for number in range(112, 122):
            assert mine.publish("OM.A", basic(number))
        here.enter_context(mama("name server at", "nsd", "-p", str(port)))
        with publisher(url, 6) as (pid, uuid):
            watched.until(lambda: numbers(one, "6") and numbers(two, "6"), "who comes after the restart is found")
            os.kill(pid, signal.SIGKILL)
        with publisher(url, 7) as (_, other):
            watched.until(lambda: numbers(one, "7") and numbers(two, "7"), "the one that came back is another peer")
        assert uuid != other
        for log in (one, two):
            assert numbers(log)[-10:] == list(range(112, 122)), "data went on without a name server"
            assert len(log.rows("gap")) == (log is one)
            assert {uuid, other} <= {json.loads(row["detail"])["uuid"] for row in log.rows("peer")}

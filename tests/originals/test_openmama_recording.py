"""The recorder, the sink and the server beside C programs that are killed and come back, over both framings."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from mama_spark.publishing.window.flight import FlightState
from mama_spark.testing.waiting import eventually

from tests.support.openmama.recorder import RecordedLog, recording

from .openmama_network import SYMBOLS, EitherNetwork, N, network, numbers, publish, replay

pytestmark = pytest.mark.originals


@pytest.mark.spec("OW29", "OW30")
def test_capturereplayc_is_recorded_and_asked_again_when_it_comes_back(
    either: EitherNetwork, tmp_path: Path, log: RecordedLog
) -> None:
    """Over ``oz`` with images and the dictionary; over ``zmq`` by a plain message, without."""
    topics = {f"OM.{symbol}" for symbol in SYMBOLS}

    def images() -> list[str]:
        return [row["topic"] for row in log.rows("image")]

    with recording(log, either.recorder_url, symbols=", ".join(topics)):
        with either.programs.mama("capturereplayc", either.sender, *replay(tmp_path)) as program:
            eventually(lambda: all(len(log.numbers(topic)) > 20 for topic in topics), "updates are recorded")
            if either.framing == "oz":
                eventually(lambda: set(images()) == topics, "images come")
                eventually(lambda: log.rows("dictionary"), "the dictionary comes")
            program.end(signal.SIGKILL)
        before = {topic: len(log.numbers(topic)) for topic in topics}
        with either.programs.mama("capturereplayc", either.sender, *replay(tmp_path)):
            eventually(lambda: all(len(log.numbers(t)) > before[t] + 20 for t in topics), "it goes on by itself")
            if either.framing == "oz":
                eventually(lambda: all(images().count(topic) >= 2 for topic in topics), "it was asked again")
    assert len({row["sender"] for row in log.rows("message")}) == 2, "it stamps a sender of its own"
    assert not log.rows("corrupt", "timeout")
    if either.framing == "oz":
        assert len(json.loads(log.rows("dictionary")[0]["detail"])) > 1000
    else:
        assert not images()


@pytest.mark.spec("OW25", "OW29")
def test_mamapublisherc_is_killed_and_comes_back(either: EitherNetwork, log: RecordedLog) -> None:
    publisher = ("-s", "OM.IBM", "-i", "0.02", "-c", "100000")
    with recording(log, either.recorder_url, topics="OM.IBM"):
        with either.programs.mama("mamapublisherc", either.sender, *publisher) as first:
            eventually(lambda: len(log.numbers("OM.IBM")) >= 20, "it is recorded")
            first.end(signal.SIGKILL)
        before = log.numbers("OM.IBM")
        with either.programs.mama("mamapublisherc", either.sender, *publisher):
            eventually(lambda: len(log.numbers("OM.IBM")) >= len(before) + 20, "the next one is recorded")
    got = log.numbers("OM.IBM")
    restart = next(i for i in range(1, len(got)) if got[i] <= got[i - 1])
    for part in (got[:restart], got[restart:]):
        assert part == list(range(part[0], part[0] + len(part))), "each one whole"
    assert not log.rows("gap"), "a lower number is of a publisher that counts anew: it has no MamaSenderId"
    if either.framing == "oz":
        peers = [json.loads(row["detail"]) for row in log.rows("peer") if row["cause"] == "online"]
        assert [p["program"] for p in peers].count("mamapublisherc") == 2
        assert len({p["uuid"] for p in peers}) == len(peers)


def test_mamaproducerc_is_recorded(either: EitherNetwork, log: RecordedLog) -> None:
    with (
        recording(log, either.recorder_url, topics="MAMA_TOPIC"),
        either.programs.mama("mamaproducerc_v2", either.sender, "-s", "MAMA_TOPIC", "-target", "200"),
    ):
        eventually(lambda: len(log.rows("message")) >= 100, "its messages are recorded")
    assert not log.rows("corrupt", "gap")


@pytest.mark.spec("OW9")
def test_a_task_reaches_mamaconsumerc_whole(either: EitherNetwork) -> None:
    """It counts the times that it misses: two a message."""
    words = ("-s", "OM.IBM", "-I", "-stats-timers")
    with either.programs.mama("mamaconsumerc_v2", either.receiver, *words) as consumer:
        flights = publish(either.sink)
        assert all((f.state == np.uint8(FlightState.ACKED)).all() for f in flights)
        missed = re.compile(r"^\d{4}/\d\d/\d\d - \d\d:\d\d:\d\d (?: +\d+){6} +(\d+)", re.MULTILINE)
        eventually(lambda: sum(map(int, missed.findall(consumer.output()))) == 2 * N, "it has counted all of them")


@pytest.mark.spec("OW9", "OW11")
def test_a_listener_that_is_killed_costs_the_others_nothing(either: EitherNetwork) -> None:
    """The task begins with two listeners; one is killed and another one comes while it publishes."""
    with either.listening() as victim, either.listening() as listener:
        victim.until("Created subscription")
        listener.until("Created subscription")
        flights = publish(either.sink, during=lambda: victim.end(signal.SIGKILL), readers=2)
        assert all((f.state == np.uint8(FlightState.ACKED)).all() for f in flights)
        listener.until("wNumber", N)
        assert numbers(listener.end()) == list(range(N))


@pytest.mark.spec("OW27")
def test_nsd_is_killed_and_comes_back(tmp_path: Path, log: RecordedLog) -> None:
    """Programs that were connected stay so; one that comes afterwards is found by the recorder."""
    with network("oz", tmp_path) as here, recording(log, here.recorder_url, topics="OM.>"):
        words = ("-i", "0.05", "-c", "100000")
        with here.programs.mama("mamapublisherc", "oz", "-s", "OM.IBM", *words):
            eventually(lambda: len(log.numbers("OM.IBM")) >= 10, "it is recorded")
            assert here.nsd is not None
            here.nsd.end(signal.SIGKILL)
            before = len(log.numbers("OM.IBM"))
            eventually(lambda: len(log.numbers("OM.IBM")) >= before + 10, "data goes on without a name server")
            with here.name_server(), here.programs.mama("mamapublisherc", "oz", "-s", "OM.MSFT", *words):
                eventually(lambda: len(log.numbers("OM.MSFT")) >= 10, "who comes afterwards is recorded")
    got = log.numbers("OM.IBM")
    assert got == list(range(got[0], got[0] + len(got)))

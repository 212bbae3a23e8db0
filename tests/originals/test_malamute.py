"""The original Malamute and the project: C clients at our broker with each engine, our client at the C broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.ports import lasting_port

pytestmark = pytest.mark.originals

PREFIX = Path(os.environ.get("ORIGINALS", "/nowhere"))
BURST = 100_000  #: as much as makes the PING of a C client wait for seconds behind its messages
N = 2000
TIMEOUT = 240
PAIRS = [("sub", "pub", "s"), ("box", "mail", "reader"), ("work", "req", "service")]

_CFG = """server
    timeout = 10000
mlm_server
    security
        mechanism = null
    bind
        endpoint = {}
"""


@contextmanager
def _original_client(
    what: str, endpoint: str, address: str, target: str, count: int
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.malamute.original_client", f"{PREFIX}/lib/libmlm.so", what]
    process = subprocess.Popen(
        [*command, endpoint, address, target, str(count)], text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _sends(endpoint: str, what: str, target: str, count: int) -> None:
    with _original_client(what, endpoint, "writer", target, count) as writer:
        assert writer.communicate(timeout=TIMEOUT)[1] == "BYE\n"


def _expected(count: int) -> list[str]:
    return [f"s.{number % 10} {number}" for number in range(count)]


@pytest.fixture(params=["simple", "durable", "jetstream"])
def ours(request: pytest.FixtureRequest, tmp_path: Path, nats_accounts: Accounts) -> Iterator[str]:
    with account(nats_accounts) as nats:
        settings = {"durable": {"folder": str(tmp_path / "streams")}, "jetstream": {"servers": nats.url}}
        engines = (EngineChoice(b"^s$", request.param, settings.get(request.param, {})),)
        with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines)) as broker:
            yield broker.endpoint


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[str]:
    endpoint = f"tcp://127.0.0.1:{lasting_port()}"
    (tmp_path / "broker.cfg").write_text(_CFG.format(endpoint))
    log = tmp_path / "broker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [PREFIX / "bin/malamute", "-f", "broker.cfg"], cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "ZSYS_LOGSYSTEM": "false"},
        )  # fmt: skip
    try:
        eventually(lambda: "NULL security" in log.read_text(), "the C broker has started")
        yield endpoint
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("reads", "writes", "target"), PAIRS)
def test_a_c_client_that_sends_flat_out_and_ends_reaches_another_whole(
    ours: str, reads: str, writes: str, target: str
) -> None:
    with _original_client(reads, ours, "reader", target, BURST) as reader:
        assert reader.stderr is not None
        assert reader.stderr.readline() == "UP\n"
        _sends(ours, writes, target, BURST)
        assert reader.communicate(timeout=TIMEOUT)[1].splitlines() == [*_expected(BURST), "BYE"]


def _both_ways(endpoint: str) -> None:
    with MalamuteClient(endpoint.replace("tcp://", "mlp://"), "ours") as client:
        client.read("s", "")
        _sends(endpoint, "pub", "s", N)
        got = [client.receive(timeout=60) for _ in range(N)]
        assert [f"{m.subject} {m.content[0].partition(b'|')[0].decode()}" for m in got if m] == _expected(N)
        with _original_client("sub", endpoint, "reader", "s", N) as reader:
            assert reader.stderr is not None
            assert reader.stderr.readline() == "UP\n"
            client.write("s")
            for number in range(N):
                client.send(f"s.{number % 10}", b"%d|" % number)
            client.sync()
            assert reader.communicate(timeout=TIMEOUT)[1].splitlines() == [*_expected(N), "BYE"]


def test_our_client_and_a_c_client_meet_at_our_broker(ours: str) -> None:
    _both_ways(ours)


def test_our_client_and_a_c_client_meet_at_the_c_broker(theirs: str) -> None:
    _both_ways(theirs)

"""``mama check`` against a Malamute broker: one clear line for each thing, exit code 2 for what is wrong, no stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from mama_spark.cli.main import main
from mama_spark.malamute.bridge.preflight import check_server
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.broker.security import Security
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.extensions import Feature


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    choices = (EngineChoice(b"^d", "durable", {"folder": str(tmp_path / "streams")}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=choices)) as broker:
        yield broker


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["check", *arguments])
    said = capsys.readouterr()
    return code, said.out + said.err


def url(broker: Broker, stream: str = "") -> str:
    return broker.endpoint.replace("tcp", "mlp") + (f"/{stream}" if stream else "")


def test_what_the_broker_does_is_said_and_no_stream_is_made(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = check(capsys, "--url", url(broker, "d1"))
    assert code == 0, said
    assert f"ok   connection: {broker.endpoint}" in said
    assert "security: none" in said
    assert "broker: mama-spark's, which acknowledges messages, carries ids and headers" in said
    assert "stream: d1, which is not there yet" in said
    assert broker.streams() == []
    assert not list((tmp_path / "streams").glob("*")), "nor a file"


def test_a_stored_stream_and_one_in_memory_are_told_apart(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    with MalamuteClient(url(broker), timeout=60) as client:
        for stream in ("d1", "m", "d2"):
            client.write(stream)
            if stream != "d2":
                client.send("a", b"x")
                client.send("b", b"y")
        client.sync()
    assert "stream: d1, stored, numbers 1 to 2" in check(capsys, "--url", url(broker), "--option", "stream=d1")[1]
    assert "stream: d2, stored, empty" in check(capsys, "--url", url(broker, "d2"))[1]
    assert "stream: m, in memory: acknowledged is accepted, not stored" in check(capsys, "--url", url(broker, "m"))[1]
    assert "every row must name its own" in check(capsys, "--url", url(broker))[1]


def test_what_does_not_work_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = MalamuteSettings.from_options
    with monkeypatch.context() as hasty:
        hasty.setattr(MalamuteSettings, "from_options", lambda o: replace(given(o), connect_timeout=0.5))
        code, said = check(capsys, "--url", "mlp://127.0.0.1:1/s")
    # a busy machine needs several handshakes to find out why none succeeds
    monkeypatch.setattr(MalamuteSettings, "from_options", lambda o: replace(given(o), connect_timeout=60.0))
    assert (code, said.count("BAD")) == (2, 1)
    assert "not reachable" in said
    public, secret = (key.decode() for key in zmq.curve_keypair())
    with Broker(BrokerSettings("tcp://127.0.0.1:*", security=Security(curve_secret_key=secret))) as broker:
        code, said = check(capsys, "--url", url(broker, "s"))
        assert (code, "another security mechanism" in said) == (2, True)
        code, said = check(capsys, "--url", url(broker, "s"), "--option", f"curveServerKey={public}")
        assert (code, "security: CURVE" in said) == (0, True)
        other = zmq.curve_keypair()[0].decode()
        code, said = check(capsys, "--url", url(broker, "s"), "--option", f"curveServerKey={other}")
        assert (code, "another key" in said) == (2, True)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", security=Security({"u": "hush"}))) as broker:
        code, said = check(capsys, "--url", url(broker, "s"), "--option", "user=u", "--option", "password=wrong-one")
        assert (code, "refused the login" in said, "wrong-one" in said) == (2, True, False)


def test_a_broker_that_announces_nothing_is_named() -> None:
    with Broker(BrokerSettings("tcp://127.0.0.1:*", SessionSettings(features=Feature(0)))) as broker:
        found = check_server(MalamuteSettings(ConnectionSettings((url(broker),)), "s"), ["a"])
    assert all(fine for fine, _ in found), found
    said = "\n".join(text for _, text in found)
    assert "none of mama-spark" in said
    assert "the first write makes" in said
    assert "repeats are not recognised" in said

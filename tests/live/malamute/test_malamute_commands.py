"""``mama pub`` and ``mama sub`` over a Malamute broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.contracts.message import MessageBatch

from tests.support.malamute.broker_process import BrokerHere


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerHere]:
    with BrokerHere(tmp_path / "broker") as broker:
        yield broker


def test_what_is_published_is_shown(broker: BrokerHere, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{broker.url}/orders"
    assert main(["pub", "orders.a", "twelve crates", "-H", "kind=fruit", "--url", url]) == 0
    assert capsys.readouterr().out == "acknowledged: orders 1\n"
    assert main(["sub", "orders.*", "--url", url, "--from", "earliest", "--count", "1", "--headers"]) == 0
    line, message_id, header = capsys.readouterr().out.splitlines()
    assert (line, message_id[:15], header) == ("1 orders.a twelve crates", "  Nats-Msg-Id: ", "  kind: fruit")


def test_it_goes_on_from_a_sequence_as_json_by_topics_of_a_stream(
    broker: BrokerHere, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.store("orders", MessageBatch.of(["a.1", "b.1", "a.2", "a.3"], [b"1", b"2", b"\xff", b"4"]))
    words = ["sub", "a.*", "--url", broker.url, "-o", "stream=orders", "--from", "2", "--count", "2", "--json"]
    assert main(words) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["topic"], first["value_base64"], first["sequence"]) == ("a.2", "/w==", 3)
    assert (second["topic"], second["value"], second["stream"]) == ("a.3", "4", "orders")


def test_a_stream_that_is_not_stored_says_not_implemented(
    broker: BrokerHere, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pub", "t", "x", "--url", f"{broker.url}/memory"]) == 0
    assert main(["sub", "t", "--url", f"{broker.url}/memory"]) == 2
    assert "NOT_IMPLEMENTED" in capsys.readouterr().err

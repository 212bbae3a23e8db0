"""``mama pub`` and ``mama sub`` against a real nats-server."""

from __future__ import annotations

import base64
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.cli.main import main
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store


@pytest.fixture
def orders(nats_server: NatsServer) -> str:
    with Admin(nats_server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
    return nats_server.url


def test_one_message_is_published_with_its_headers_and_acknowledged(
    orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pub", "orders.a", "twelve crates", "-H", "kind=fruit", "-H", "kind=green=yes", "--url", orders]
    assert main(words) == 0
    assert capsys.readouterr().out == "acknowledged: ORDERS 1\n"
    with Admin(orders) as client:
        (stored,) = client.messages("ORDERS")
    assert (stored.topic, stored.payload) == ("orders.a", b"twelve crates")
    assert stored.headers["kind"] == ["fruit", "green=yes"]


def test_every_line_of_standard_input_is_a_message(
    orders: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"".join(b"line %d \xff\n" % i for i in range(3_000))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines + b"the last")))
    assert main(["pub", "orders.a", "--url", orders]) == 0
    assert capsys.readouterr().out == "3,001 acknowledged, 0 failed\n"
    with Admin(orders) as client:
        stored = [m.payload for m in client.messages("ORDERS")]
    assert stored == [*(b"line %d \xff" % i for i in range(3_000)), b"the last"]


@pytest.mark.parametrize("topic", ["nowhere.a", "orders.*"])
def test_message_that_is_not_acknowledged_is_exit_code_1_with_the_reason(
    orders: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pub", topic, "x", "--url", orders, "-o", "waitTimeout=1s"]) == 1
    assert capsys.readouterr().err.startswith(f"mama: {topic}: ")


def test_wrong_words_are_exit_code_2(orders: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["pub", "a", "x", "-o", "nonsense"],
        ["pub", "a", "x", "-o", "colour=red"],
        ["pub", "a", "x", "-H", "=v"],
        ["pub", "a", "x", "--url", "mlp://a", "--url", "gopher://a"],
        ["sub", "a", "--from", "yesterday", "--url", orders],
        ["sub", "nowhere.>", "--url", orders],
        ["sub", "a..b", "--url", orders],
    ):
        assert main(words) == 2, words
        assert capsys.readouterr().err.startswith("mama: ")


def test_messages_are_shown_from_a_place_in_the_past_and_cannot_steer_the_terminal(
    orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(orders) as client:
        store(client, "ORDERS", [("orders.a", b"one", {"kind": "x"}), ("orders.b", b"two\xff", None)])
        store(client, "ORDERS", plain("orders.a", 2))
    assert main(["sub", "orders.>", "--from", "earliest", "--count", "2", "--headers", "--url", orders]) == 0
    assert capsys.readouterr().out == "1 orders.a one\n  kind: x\n2 orders.b two\\xff\n"
    assert main(["sub", "orders.a", "--from", "2", "--count", "2", "--url", orders]) == 0
    assert capsys.readouterr().out == "3 orders.a orders.a 0\n4 orders.a orders.a 1\n"
    assert main(["sub", "orders.*", "--from", "1", "--count", "2", "--json", "--url", orders]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [first[name] for name in ("topic", "value", "headers", "sequence")] == [
        "orders.a", "one", [["kind", "x"]], 1
    ]  # fmt: skip
    assert base64.b64decode(second["value_base64"]) == b"two\xff"
    with Admin(orders) as client:
        store(client, "ORDERS", [("orders.c", b"\x1b[2Jgone\r\tnot\n", {"kind": "\x1b]0;x\x07"})])
    assert main(["sub", "orders.c", "--from", "1", "--count", "1", "--headers", "--url", orders]) == 0
    assert capsys.readouterr().out == "5 orders.c \\x1b[2Jgone\\x0d\tnot\n\n  kind: \\x1b]0;x\\x07\n"


def test_sub_does_not_wait_for_a_server_that_was_never_there(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--url", "nats://127.0.0.1:1", "-o", "waitTimeout=1h", "-o", "connectTimeout=300ms"]
    assert main(["sub", "orders.a", *words]) == 2
    assert "nats://127.0.0.1:1" in capsys.readouterr().err


def test_sub_follows_from_now_on_over_a_restart_of_the_server_until_ctrl_c(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server, Admin(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
        store(client, "ORDERS", plain("orders.old", 3))
        command = [sys.executable, "-u", "-m", "mama_spark.cli", "sub", "orders.>", "--url", server.url]
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("wb") as file, err.open("wb") as errors:
            process = subprocess.Popen(command, stdout=file, stderr=errors)
        try:
            eventually(lambda: err.read_bytes() == b"mama: follows ORDERS from sequence 4\n", "it is connected")

            def sent_and_shown(number: list[int]) -> bool:
                store(client, "ORDERS", [("orders.new", b"%d" % number[0], None)])
                number[0] += 1
                return b"orders.new" in out.read_bytes()

            number = [0]
            eventually(lambda: sent_and_shown(number), "it follows")
            server.kill()
            server.start()
            store(client, "ORDERS", plain("orders.after", 2))
            eventually(lambda: b"orders.after 1" in out.read_bytes(), "it goes on after the restart")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
        shown = [line.split()[:2] for line in out.read_text().splitlines()]
        assert "orders.old" not in {topic for _, topic in shown}
        sequences = [int(sequence) for sequence, _ in shown]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences))), "each once, in order"

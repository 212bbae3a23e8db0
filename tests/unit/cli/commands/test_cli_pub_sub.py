"""``mama pub`` and ``mama sub`` over a bridge without a server."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.cli.main import main
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs

from tests.support.tables import each


def test_what_is_published_over_a_bridge_is_shown_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"memory://{uuid4().hex}"
    for i in range(3):
        assert main(["pub", f"orders.r{i}", f"order {i}", "-H", f"n={i}", "--url", url]) == 0
    capsys.readouterr()
    assert main(["sub", "orders.*", "--from", "2", "--count", "2", "--json", "--url", url]) == 0
    out, err = capsys.readouterr()
    assert "from sequence 2\n" in err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(r["topic"], r["value"], r["sequence"]) for r in rows] == [
        ("orders.r1", "order 1", 2),
        ("orders.r2", "order 2", 3),
    ]
    assert [["n", "1"] in rows[0]["headers"], ["n", "2"] in rows[1]["headers"]] == [True, True]


def test_a_transport_of_a_properties_file_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mama.properties"
    file.write_text(f"mama.memory.transport.desk.url=memory://{uuid4().hex}\n")
    words = ["-o", "bridge=memory", "-o", "transport=desk", "-o", f"properties={file}"]
    assert main(["pub", "orders.a", "x", *words]) == 0
    capsys.readouterr()
    assert main(["sub", "orders.a", "--from", "earliest", "--count", "1", *words]) == 0
    assert capsys.readouterr().out == "1 orders.a x\n"


def test_rows_of_packed_messages_are_shown_each_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"memory://{uuid4().hex}"
    typed = pa.record_batch({"n": [1, 2], "sym": ["ä", None]})
    values = pa.record_batch({"value": pa.array([None, b"x"], pa.binary())})
    arrow, nulls = (
        rows.schema.serialize().to_pybytes() + rows.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
        for rows in (typed, values)
    )
    payloads = [b"plain", b"one\ntwo", arrow, nulls, b"cut"]
    headers: list[dict[str, list[str]] | None] = [
        None if form is None else {"Mama-Pack": [form], "Mama-Pack-Rows": ["2"]}
        for form in (None, "lines;v=1", *["arrow;v=1"] * 3)
    ]
    log = MemoryLogs(url.removeprefix("memory://")).log(url.removeprefix("memory://"))
    log.append(MessageBatch.of([f"t.{i}" for i in range(5)], payloads, headers))
    assert main(["sub", "t.*", "--from", "1", "--count", "8", "--url", url]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    want = [
        "1 t.0 plain", "2.0 t.1 one", "2.1 t.1 two", '3.0 t.2 {"n":1,"sym":"ä"}', '3.1 t.2 {"n":2,"sym":null}',
        "4.0 t.3 null", "4.1 t.3 x",
    ]  # fmt: skip
    assert lines == want
    assert last.startswith("5 t.4 cut (")
    assert main(["sub", "t.*", "--from", "4", "--count", "1", "--json", "--url", url]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["pack_index"], shown["value"]) == (0, None)
    assert main(["sub", "t.1", "--from", "2", "--count", "1", "--url", url, "-o", "unpack=false"]) == 0
    assert capsys.readouterr().out == "2 t.1 one\ntwo\n"


def test_a_count_below_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sub", "t", "--count", "-1", "--url", f"memory://{uuid4().hex}"]) == 2
    assert "--count wants a number of messages, 0 or more, got -1" in capsys.readouterr().err


@each(
    ("faults", "given", "code"),
    [
        (["503", "503"], {"retryAttempts": "1", "retryBackoff": "1"}, 1),
        (["503", "503"], {"retryAttempts": "2", "retryBackoff": "1"}, 0),
        (["503"], {"retryDeadline": "60s", "waitTimeout": "50", "retryBackoff": "100"}, 0),
        (["503"], {"retryDeadline": "50", "waitTimeout": "60s", "retryBackoff": "100"}, 1),
        (["503"], {"waitTimeout": "50", "retryBackoff": "100"}, 1),  # without a retryDeadline waitTimeout is the limit
    ],
)
def test_pub_sends_again_as_its_options_say(faults: list[str], given: dict[str, str], code: int) -> None:
    broker = MemoryBroker.get(uuid4().hex)
    broker.then(faults)
    words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    assert main(["pub", "orders.a", "x", "--url", f"memory://{broker.name}", *words]) == code
    assert not broker.script
    assert len(broker.messages()) == 1 - code


@each(
    ("faults", "given", "stored", "code"),
    [
        # with one in flight, a message that is lost and sent again is stored before the next one
        (["drop"], {"maxInFlight": "1"}, "123", 0),
        (["lose"], {"order": "partition"}, "123", 0),  # the broker knows the id of the second send
        (["lose"], {"dedup": "false", "order": "partition"}, "1123", 0),
        (["lose"], {"dedup": "false", "onUncertain": "report"}, "123", 1),
        (["ack", "503"], {"order": "partition"}, "123", 0),
    ],
)
def test_pub_sends_ids_repeats_keeps_order_and_holds_back_as_its_options_say(
    faults: list[str], given: dict[str, str], stored: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker.get(uuid4().hex)
    broker.then(faults)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n3\n")))
    given = {"waitTimeout": "100", "retryDeadline": "60s", **given}
    words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    assert main(["pub", "orders.a", "--url", f"memory://{broker.name}", *words]) == code
    assert b"".join(m.payload for m in broker.messages()).decode() == stored

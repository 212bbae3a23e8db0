"""``mama pub`` and ``mama sub`` over a bridge without a server."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from mama_spark.cli import main


def test_what_is_published_over_a_bridge_is_shown_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"memory://{uuid4().hex}"
    for i in range(3):
        assert main(["pub", f"orders.r{i}", f"order {i}", "-H", f"n={i}", "--url", url]) == 0
    capsys.readouterr()
    assert main(["sub", "orders.*", "--from", "2", "--count", "2", "--json", "--url", url]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
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

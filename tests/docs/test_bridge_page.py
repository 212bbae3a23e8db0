"""The bridge of docs/writing-a-bridge.md passes the suite, as the page writes it, and carries a publisher."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-bridge.md"
CODE: dict[str, Any] = {"__name__": __name__}
sys.path.append(str(ROOT / "tests" / "example_middleware"))
for block in re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8")):
    if not block.startswith("--8<--"):
        exec(compile(block, str(PAGE), "exec"), CODE)
sys.path.pop()

TestFileBridge = CODE["TestFileBridge"]


def test_a_managed_publisher_publishes_through_it(tmp_path: Path) -> None:
    with ManagedPublisher(CODE["FileBridge"](tmp_path / "messages")) as publisher:
        flights = [publisher.publish_async(f"t.{n}", b"x") for n in range(3)]
    assert [flight.result().publish_ack_future.result() is not None for flight in flights] == [True] * 3
    assert len((tmp_path / "messages").read_text().splitlines()) == 3


def test_what_it_cannot_open_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be written"):
        CODE["FileBridge"](tmp_path / "missing" / "messages").open()

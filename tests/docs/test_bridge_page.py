"""The example of docs/writing-a-bridge.md passes the suites, as the page writes it, and carries a publisher."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mama_spark.contracts import errors
from mama_spark.contracts.message import MessageBatch
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.testing import discovery_suite, log_suite
from mama_spark.testing.discovery_suite import DiscoveryReadingSuite, DiscoverySetup
from mama_spark.testing.log_suite import LogSetup, LogSuite

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-bridge.md"
CODE: dict[str, Any] = {"__name__": __name__}
sys.path.append(str(ROOT / "tests" / "example_middleware"))
for block in re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8")):
    if not block.startswith("--8<--"):
        exec(compile(block, str(PAGE), "exec"), CODE)
bridge, discovery, log = (import_module(f"mama_files.{name}") for name in ("bridge", "discovery", "log"))
sys.path.pop()

TestFileBridge = CODE["TestFileBridge"]


def not_called(*_: object) -> None:
    raise AssertionError("a test that is left out calls it")


class TestFileLog(LogSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> LogSetup:
        path = tmp_path / "messages"
        return LogSetup(lambda: log.FileLogs(path), "messages", lambda batch: bridge.append(path, batch), not_called)


class TestFileDiscovery(DiscoveryReadingSuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> DiscoverySetup:
        logs = log.FileLogs(tmp_path / "messages")
        return DiscoverySetup(lambda: discovery.FileDiscovery(logs, None), 0.0, 0.0, not_called, not_called)


def left_out(suite: ModuleType) -> list[str]:
    """The tests that the docstring of a suite lets subclasses leave out: a file can do nothing of what they test."""
    return re.findall(r"``(test_\w+)``", suite.__doc__ or "")


for of, names in ((TestFileLog, left_out(log_suite)), (TestFileDiscovery, left_out(discovery_suite))):
    for name in names:
        assert hasattr(of, name), name
        setattr(of, name, None)


def test_the_docstring_of_errors_says_their_flags() -> None:
    doc = errors.PublishError.__doc__ or ""
    told: dict[str, tuple[str, ...]] = {}
    for classes, *flags in re.findall(r"(?m)^ *\| (``.*?) \| (\w+) \| (\w+) \| ``(\w+)`` \|$", doc):
        told |= dict.fromkeys(re.findall(r"``(\w+)``", classes), tuple(flags))
    every = [errors.PublishError]
    for error in every:  # it grows
        every += error.__subclasses__()
    ours = [error for error in every if error.__module__ == errors.__name__]
    assert told.keys() <= {error.__name__ for error in ours}
    for error in ours:
        known = next(told[base.__name__] for base in error.__mro__ if base.__name__ in told)
        assert known == (*(("no", "yes")[flag] for flag in (error.retryable, error.may_have_landed)),
                         error.backpressure.name), error  # fmt: skip


def test_a_managed_publisher_publishes_through_it(tmp_path: Path) -> None:
    with ManagedPublisher(CODE["FileBridge"](tmp_path / "messages")) as publisher:
        flights = [publisher.publish_async(f"t.{n}", b"x") for n in range(3)]
    assert [flight.result().publish_ack_future.result() is not None for flight in flights] == [True] * 3
    assert len((tmp_path / "messages").read_text().splitlines()) == 3


def test_what_it_cannot_open_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be written"):
        CODE["FileBridge"](tmp_path / "missing" / "messages").open()


def test_what_it_cannot_write_waits_and_says_why(tmp_path: Path) -> None:
    files = CODE["FileBridge"](tmp_path)
    assert files.send(MessageBatch.of(["a"], [b"x"]), 0) == 0
    assert "cannot be written" in files.explain_missing_acks()
    files.path = tmp_path / "messages"
    assert files.send(MessageBatch.of(["a"], [b"x"]), 0) == 1
    assert files.explain_missing_acks() == ""

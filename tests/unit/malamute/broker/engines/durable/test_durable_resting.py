"""A durable stream costs what is on the disk while nobody uses it: no file that nobody has written to is open."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines.durable import engine as durable_engine
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.engines.durable.store_lock import StoreLock
from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome

from tests.support.malamute.durable_engine import EngineHarness, Make


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_engine, "REST", 0.0)


def test_a_stream_that_was_only_read_makes_no_file(tmp_path: Path) -> None:
    one = DurableEngine(b"st", {"folder": str(tmp_path)})
    one.start()
    for after in (None, 0, 7):
        one.compile(f"reader {after}", b"", after)
    one.flush()
    assert one.idle() is None
    assert (one.position(), list(tmp_path.iterdir())) == (0, [])
    got: list[object] = []
    one.traffic(got.append)
    one.accept("writer", b"w", b"x", [b""])
    one.flush()
    assert len(got) == 3
    assert store_path(tmp_path, b"st").exists()
    one.close()


def test_a_resting_stream_goes_on_where_it_was(engines: Make) -> None:
    one = engines()
    assert one.publish(b"1", b"2", ids=True)[0].count == 2
    for count in (2, 3, 4):
        assert one.engine.idle() is None
        assert one.engine.store.resting
        assert one.engine.position() == count
        assert one.publish(b"1", ids=True) == (AckRun(StoreOutcome.DUPLICATE, 1, 1),)
        assert one.replayed(after=0, client=count) == list(range(1, count + 1))
        assert one.publish(b"n%d" % count) == (AckRun(StoreOutcome.STORED, 1, count + 1),)
    one.engine.idle()
    one.engine.close()
    assert one.engine.store.resting
    assert engines().engine.position() == 5


def test_a_resting_stream_is_not_for_others(engines: Make) -> None:
    one = engines()
    one.publish(b"1")
    one.engine.idle()
    assert one.engine.store.resting
    with pytest.raises(ConfigError, match="is open elsewhere"):
        engines()


def test_a_store_that_was_replaced_or_removed_while_it_rested_is_an_error(tmp_path: Path, engines: Make) -> None:
    for name in (b"gone", b"replaced"):
        one = engines(name=name)
        one.publish(b"1")
        one.engine.idle()
        path = store_path(tmp_path, name)
        path.unlink()
        if name == b"replaced":
            other = EngineHarness(tmp_path / "other", name=name)
            other.engine.close()
            shutil.copy(store_path(tmp_path / "other", name), path)
        with pytest.raises(ConfigError, match=f"{name.decode()}.stream is (gone|another store by now)"):
            one.publish(b"2")


def test_messages_that_get_old_keep_their_stream_awake(engines: Make) -> None:
    one = engines(max_age="1d")
    one.publish(b"1")
    assert one.engine.idle() is not None
    assert not one.engine.store.resting


def test_a_store_that_another_process_has_open_is_locked_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "st.stream"
    program = f"""
import sys
from pathlib import Path
from mama_spark.malamute.broker.engines.durable.store_lock import StoreLock
lock = StoreLock(Path({str(path)!r}))
print("locked", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as theirs:
        assert theirs.stdout is not None
        assert theirs.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match="is open elsewhere"):
            StoreLock(path)
        theirs.communicate()
    StoreLock(path).close()

"""Leases of sources: who renews them, for how long, and what becomes of one that was not renewed in time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from mama_spark.contracts.bridge import DiscoveryEventKind, SourceKey
from mama_spark.contracts.connection_pool import IDLE
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.discovery import lease_keeper as leases
from mama_spark.discovery.lease_keeper import Announced, LeaseKeeper, LeaseWithdrawn, lease_keeper
from mama_spark.testing.waiting import eventually

from tests.support.clocks import Clock

DESK = Announced(SourceKey("desk", 7), b"r", 30.0)


class Store:
    """Notes what it is asked.

    :ivar renewal: what becomes of one
    :ivar recovery: likewise
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.standing = True
        self.renewal: bool | Exception = True
        self.recovery: DiscoveryEventKind | Exception | None = None
        self.waiting: Callable[[SourceKey], object] = lambda _: None

    def stands(self, one: Announced) -> bool:
        return self.standing

    def announce(self, one: Announced) -> None:
        self.calls.append(f"announce {one.record!r}")

    def wait_until_readable(self, source: SourceKey) -> None:
        self.waiting(source)

    def renew(self, one: Announced) -> bool:
        self.calls.append("renew")
        if isinstance(self.renewal, Exception):
            raise self.renewal
        return self.renewal

    def recover(self, one: Announced) -> DiscoveryEventKind | None:
        self.calls.append("recover")
        if isinstance(self.recovery, Exception):
            raise self.recovery
        return self.recovery

    def withdraw(self, source: SourceKey, record: bytes) -> None:
        self.calls.append("withdraw")

    def close(self) -> None:
        self.calls.append("close")


class Process:
    """What announces, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.store = Clock(), Store()
        monkeypatch.setattr(leases, "time", self.clock)
        self.keeper = LeaseKeeper(self.store)

    def later(self, seconds: float, *expected: str) -> None:
        """Let time pass; what the store is asked then."""
        self.store.calls.clear()
        self.clock.ahead += seconds
        with self.keeper._changed:
            self.keeper._changed.notify_all()
        eventually(lambda: self.store.calls == list(expected), f"{expected}")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process(monkeypatch)
    yield made
    made.keeper.stop()


def test_a_source_is_renewed_while_a_bridge_holds_it_and_for_a_while_longer(process: Process) -> None:
    keeper, store = process.keeper, process.store
    for bridge in ("one", "two"):
        keeper.announce(bridge, DESK)
    assert store.calls == ["announce b'r'"], "the second one finds what it would announce"
    keeper.release("one")
    process.later(IDLE + 10, "renew")
    keeper.release("two")
    process.later(10, "renew")
    keeper.announce("three", DESK)
    assert store.calls == ["renew"], "it is taken up"
    keeper.release("three")
    process.later(IDLE + 10, "close")
    assert not keeper.sources


@pytest.mark.parametrize(("standing", "record"), [(False, b"r"), (True, b"other")])
def test_what_is_not_stored_as_it_is_announced_is_announced_again(
    process: Process, standing: bool, record: bytes
) -> None:
    process.keeper.announce("one", DESK)
    process.store.standing = standing
    process.keeper.announce("one", DESK._replace(record=record))
    assert process.store.calls[1:] == [f"announce {record!r}"]


def test_who_waits_for_readers_keeps_no_other_source_from_its_renewal(process: Process) -> None:
    process.keeper.announce("one", DESK)
    waits, end = threading.Event(), threading.Event()
    other = Announced(SourceKey("other", 1), b"r", 30.0)
    written = [other.source]

    def wait(source: SourceKey) -> None:
        if source in written:
            written.remove(source)
            waits.set()
            end.wait(60)

    process.store.waiting = wait
    slow = threading.Thread(target=process.keeper.announce, args=("one", other))
    slow.start()
    assert waits.wait(60)
    process.later(10, "renew", "renew")
    end.set()
    slow.join()


def test_a_withdrawn_source_is_renewed_no_more(process: Process) -> None:
    process.keeper.announce("one", DESK)
    process.keeper.withdraw(DESK.source, b"off")
    assert process.store.calls[1:3] == ["withdraw", "close"]
    assert not process.keeper.sources


@pytest.mark.parametrize(
    ("renewal", "recovery", "asked", "said"),
    [
        (False, DiscoveryEventKind.SUSPECT, ["recover"], "had been called SUSPECT, because nobody renewed it for 15 s"),
        (False, DiscoveryEventKind.OFFLINE, ["recover"], "had been called OFFLINE, because nobody renewed it for 30 s"),
        (False, None, ["recover"], ""),
        (False, LeaseWithdrawn(""), ["recover", "close"], "has been withdrawn: it is not renewed any more"),
        (Unavailable("away"), None, [], "could not be renewed, trying again: away"),
        (KeyError("defect"), None, [], "could not be renewed, trying again"),
        (ConfigError("denied"), None, ["close"], "could not be renewed, trying again: denied"),
    ],
)
def test_what_becomes_of_a_source_that_cannot_be_renewed(
    process: Process,
    caplog: pytest.LogCaptureFixture,
    renewal: bool | Exception,
    recovery: DiscoveryEventKind | Exception | None,
    asked: list[str],
    said: str,
) -> None:
    process.keeper.announce("one", DESK)
    process.store.renewal, process.store.recovery = renewal, recovery
    with caplog.at_level(logging.INFO, "mama_spark.discovery"):
        process.later(10, "renew", *asked)
        eventually(lambda: said in caplog.text, said)
    assert bool(said) == bool(caplog.text)
    gone = isinstance(recovery, LeaseWithdrawn)
    process.store.renewal = True
    process.later(10, *(() if gone else ("renew",)))


def test_a_fork_begins_with_nothing_announced() -> None:
    lease_keeper("a place", Store)
    child = os.fork()
    if not child:
        os._exit(len(leases._keepers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lease_keeper("a place", Store) is lease_keeper("a place", Store)
    leases.clear()

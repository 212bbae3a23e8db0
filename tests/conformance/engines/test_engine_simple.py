"""Stream engines in memory: the actor, late answers, and the simple one."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import zmq
from mama_spark.contracts.errors import ConfigError
from mama_spark.malamute.broker.engines import Delivery, StreamEngine, engine_class, names, register, registry
from mama_spark.malamute.broker.engines.commands import CommandDone, CreditReturned, EngineFailed, Report
from mama_spark.malamute.broker.engines.engine_threads import ReportSocket
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.engines.subscription_index import CACHED_SUBJECTS
from mama_spark.malamute.protocol.extensions import AckRun, StoreOutcome
from mama_spark.malamute.testing.driven_stream import TIMEOUT, DrivenStream
from mama_spark.malamute.testing.engine_suite import EngineKind, EngineSetup, EngineSuite, Ref
from mama_spark.testing.waiting import until

# The simple engine passes the suite for engines; what is wrong with an engine ends its stream and nothing else


class TestSimple(EngineSuite):
    @pytest.fixture
    def kind(self) -> EngineKind:
        return EngineKind("simple")

    def test_more_subjects_than_are_remembered(self, site: EngineSetup) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"5$")
        got = site.publish(stream, Ref("w"), *[b"%d" % n for n in range(CACHED_SUBJECTS + 100)] * 2)
        assert got == [(r, b"%d" % n) for n in range(5, CACHED_SUBJECTS + 100, 10)] * 2


class Failing(SimpleEngine):
    """Fails where its settings say."""

    def start(self) -> None:
        self.closed = False
        if self.settings.get("start"):
            raise self.settings["start"]

    def accept(self, client: Any, address: bytes, subject: bytes, content: Any, extension: Any = None) -> None:
        if subject == b"fail":
            raise OSError("disk full")
        super().accept(client, address, subject, content, extension)

    def close(self) -> None:
        self.settings.get("closed", []).append(self.name)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.term()


@pytest.mark.spec("ML-05", "ML-09")
@pytest.mark.parametrize("when", ["start", "batch"])
def test_an_engine_that_raises_says_why_and_what_it_said_before_in_the_batch_does_not_leave(
    context: Any, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    error, closed = OSError("disk full"), list[bytes]()
    stream = DrivenStream(context, b"st", Failing, {"start": error if when == "start" else None, "closed": closed})
    traffic = ReportSocket(context)
    traffic.add(stream)
    if when == "batch":
        assert traffic.take(60) == (stream, [CommandDone()])
        stream.compile(Ref("r"), b"")
        for subject in (b"good", b"fail", b"never"):
            stream.accept(Ref("w"), b"", subject, [])
        stream.flush()
    taken = traffic.take(60)
    assert taken is not None
    (died,) = taken[1]
    assert isinstance(died, EngineFailed)
    assert "disk full" in str(died.error)
    assert "disk full" in caplog.text
    for _ in range(100):  # to nobody; never blocks
        stream.accept(Ref("w"), b"", b"late", [])
        stream.flush()
    stream.destroy()
    assert closed == [b"st"]
    traffic.close()


@pytest.mark.spec("ML-02")
def test_engines_are_found_by_name_and_those_that_are_registered_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_class("simple") is SimpleEngine
    with pytest.raises(ConfigError, match=r"no stream engine 'nonsense'; there are .*simple"):
        engine_class("nonsense")
    monkeypatch.setattr(registry, "_registered", {})
    for name in ("mine", "simple"):
        register(name, Failing)
        assert engine_class(name) is Failing
    assert {"mine", "simple"} <= set(names())
    for bad in (object, SimpleEngine(b"x")):
        with pytest.raises(ConfigError, match="no StreamEngine"):
            register("bad", bad)  # type: ignore[arg-type]


@pytest.mark.spec("ML-02")
def test_an_engine_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("theirs", f"{__name__}:Failing", registry.GROUP),
        importlib.metadata.EntryPoint("broken", "no_such_module:Engine", registry.GROUP),
        importlib.metadata.EntryPoint("wrong", "json:dumps", registry.GROUP),
    ]

    def found(group: str, name: str | None = None) -> list[importlib.metadata.EntryPoint]:
        return [p for p in points if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    monkeypatch.setattr(registry, "_registered", {})
    assert engine_class("theirs").__name__ == "Failing"
    assert issubclass(engine_class("theirs"), StreamEngine)
    assert names() == ["broken", "durable", "jetstream", "simple", "theirs", "wrong"]
    with pytest.raises(ConfigError, match="cannot be loaded"):
        engine_class("broken")
    with pytest.raises(ConfigError, match="no StreamEngine"):
        engine_class("wrong")


# A stream is an actor: one thread, commands in, reports out (ML-04 to ML-11), whatever its engine does with them


@pytest.fixture
def site() -> Iterator[EngineSetup]:
    site = EngineSetup(EngineKind("simple"), own_thread=True)
    yield site
    site.close()


@pytest.mark.spec("ML-09", "ML-11", "E1")
def test_start_verbose_destroy_and_unknown_commands_are_logged_and_nothing_else(
    site: EngineSetup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mama_spark")
    stream, r = site.stream(), Ref("r")
    stream.send(b"VERBOSE")
    stream.send(b"NONSENSE", b"and", b"more")
    site.compile(stream, r, b"x")
    assert site.publish(stream, Ref("w"), b"x") == [(r, b"x")]
    for name in ("COMPILE", "ACCEPT", "unknown command b'NONSENSE'"):
        assert name in caplog.text


@pytest.mark.spec("ML-05", "ML-08", "ML-10")
def test_an_actor_has_one_thread_which_term_ends_behind_what_was_said_before(site: EngineSetup) -> None:
    site.stream(b"never used", traffic=False).destroy(TIMEOUT)
    assert site.threads() == []
    stream, r = site.stream(b"of its own"), Ref("r")
    assert site.threads() == ["stream-of its own"], "it is there when the constructor returns"
    stream.compile(r, b"")
    stream.flush()
    stream.send(b"$TERM")
    assert site.answers(stream) == [CommandDone()]
    until(lambda: not site.threads())


@pytest.mark.spec("ML-04", "ML-16", "ML-17")
def test_deliveries_come_over_a_push_socket_to_the_pull_socket_that_traffic_named(site: EngineSetup) -> None:
    """Any PULL on ``inproc://`` hears from each stream when there is something to take."""
    pull = site.context.socket(zmq.PULL)
    try:
        pull.bind("inproc://of-this-test")
        streams = {name: site.stream(name, traffic=False) for name in (b"one", b"two")}
        for name, stream in streams.items():
            stream.traffic("inproc://of-this-test")
            stream.compile(name, b"")
            stream.accept(Ref("w"), b"", b"subject", [name])
            stream.sync(Ref("w"))
            stream.flush()
        found: dict[bytes, list[object]] = {name: [] for name in streams}
        while not all(any(isinstance(one, Delivery) for one in said) for said in found.values()):
            assert pull.poll(int(TIMEOUT * 1000)), found
            name = pull.recv()
            found[name] += streams[name].actor.reports.popleft()
        for name, said in found.items():
            (delivery,) = [one for one in said if isinstance(one, Delivery)]
            assert (delivery.client, delivery.content) == (name, [name]), "routed by the reference that it carries"
    finally:
        pull.close(0)


@pytest.mark.spec("ML-18")
def test_traffic_is_idempotent_and_goes_to_the_first_endpoint(site: EngineSetup) -> None:
    stream, r = site.stream(), Ref("r")
    site.compile(stream, r, b"")
    other = ReportSocket(site.context)
    for endpoint in (site.traffic.endpoint, other.endpoint):
        stream.traffic(endpoint)
        assert site.answers(stream) == [CommandDone()]
    assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")]
    assert other.take(0.0) is None
    other.close()


# --- an engine may know only later what became of messages: SYNC waits then, and what it says behind that -------------

STORED = (AckRun(StoreOutcome.STORED, 1, 1),)


class LateEngine(SimpleEngine):
    """Knows at the CANCEL of "now" what it was asked before, or by itself when it idles after that of "soon"."""

    known = soon = False

    def sync(self, client: Hashable) -> Callable[[], tuple[AckRun, ...] | None]:
        return lambda: STORED if self.known else None

    def cancel(self, client: Hashable) -> None:
        super().cancel(client)
        self.known, self.soon = client == "now", client == "soon"

    def credit(self, client: Hashable, amount: int | None) -> None:
        """It holds."""

    def idle(self) -> float | None:
        self.known = self.known or self.soon
        return 0.01


@pytest.fixture
def late() -> Iterator[EngineSetup]:
    late = EngineSetup(EngineKind(LateEngine), own_thread=True)
    yield late
    late.close()


def report(late: EngineSetup) -> Report:
    taken = late.traffic.take(TIMEOUT)
    assert taken is not None
    return taken[1]


def test_what_was_said_before_a_late_answer_does_not_wait_and_what_comes_behind_it_does(late: EngineSetup) -> None:
    stream = late.stream()
    stream.compile("r", b"")
    stream.accept("w", b"", b"1", [])
    stream.sync("w")
    stream.accept("w", b"", b"2", [])
    stream.flush()
    compiled, first = report(late)
    assert (compiled, first.subject) == (CommandDone(), b"1")  # type: ignore[union-attr]
    stream.accept("w", b"", b"3", [])
    stream.sync("w")
    stream.flush()
    assert late.traffic.take(0.1) is None
    stream.cancel("now")
    stream.flush()
    said = report(late)
    assert [one if isinstance(one, CommandDone) else one.subject for one in said] == [  # type: ignore[union-attr]
        CommandDone(runs=STORED), b"2", b"3", CommandDone(runs=STORED), CommandDone(),
    ]  # fmt: skip


def test_credit_that_is_called_back_does_not_wait(late: EngineSetup) -> None:
    """Other streams wait for it."""
    stream = late.stream()
    stream.compile("r", b"")
    stream.credit("r", 5)
    stream.sync("w")
    stream.recall("r")
    stream.flush()
    assert report(late) == [CommandDone(), CreditReturned("r", 5)]
    stream.cancel("soon")
    stream.flush()
    assert report(late) == [CommandDone(runs=STORED), CommandDone()], "it is asked again while it idles"

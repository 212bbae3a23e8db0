"""The simple engine passes the suite for engines; what is wrong with an engine ends its stream and nothing else."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest
import zmq
from mama_spark.errors import BackgroundTaskFailed, ConfigError
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.services.malamute_broker.engines import StreamEngine, engine_class, names, register, registry
from mama_spark.services.malamute_broker.engines.engine_handle import EngineFailed, EngineHandle, ReportSocket
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine
from mama_spark.services.malamute_broker.engines.subscription_index import CACHED_SUBJECTS
from mama_spark.testing.engine_suite import EngineKind, EngineSetup, EngineSuite, Ref


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

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
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
@pytest.mark.parametrize(
    ("error", "raised"), [(ConfigError("no such disk"), ConfigError), (OSError("x"), BackgroundTaskFailed)]
)
def test_an_engine_that_does_not_start_says_why(context: Any, error: Exception, raised: type[Exception]) -> None:
    closed: list[bytes] = []
    with pytest.raises(raised, match=str(error)):
        EngineHandle(context, b"st", Failing, {"start": error, "closed": closed})
    assert closed == [b"st"]


def test_an_engine_that_raises_ends_its_stream_and_what_it_said_before_in_the_batch_does_not_leave(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[bytes] = []
    traffic = ReportSocket(context)
    stream, sound = EngineHandle(context, b"st", Failing, {"closed": closed}), EngineHandle(context, b"sound")
    traffic.add(stream)
    traffic.add(sound)
    assert traffic.take(60) is not None
    assert traffic.take(60) is not None
    stream.compile(Ref("r"), b"")
    for subject in (b"good", b"fail", b"never"):
        stream.accept(Ref("w"), b"", subject, [])
    stream.flush()
    taken = traffic.take(60)
    assert taken is not None
    assert taken[0] is stream
    (died,) = taken[1]
    assert isinstance(died, EngineFailed)
    assert "disk full" in str(died.error)
    assert "disk full" in caplog.text
    for _ in range(100):  # to nobody; never blocks
        stream.accept(Ref("w"), b"", b"late", [])
        stream.flush()
    stream.destroy()
    assert closed == [b"st"]
    sound.compile(Ref("r"), b"")
    sound.flush()
    assert traffic.take(60) is not None
    sound.destroy()
    traffic.close()


def test_reports_of_a_stream_that_was_removed_go_nowhere(context: Any) -> None:
    traffic, stream = ReportSocket(context), EngineHandle(context, b"st")
    traffic.add(stream)
    assert traffic.take(60) is not None
    traffic.remove(stream)
    stream.cancel(Ref("r"))
    stream.destroy()
    assert traffic.take(0.1) is None
    traffic.close()


@pytest.mark.spec("ML-02")
def test_engines_are_found_by_name() -> None:
    assert engine_class("simple") is SimpleEngine
    assert "simple" in names()
    with pytest.raises(ConfigError, match=r"no stream engine 'nonsense'; there are .*simple"):
        engine_class("nonsense")


def test_an_engine_can_be_registered_and_goes_before_others_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register("mine", Failing)
    register("simple", Failing)
    assert engine_class("mine") is engine_class("simple") is Failing
    assert "mine" in names()
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

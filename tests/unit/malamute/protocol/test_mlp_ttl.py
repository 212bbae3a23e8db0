"""Messages with a time to live: running timers of subjects, and markers for expired messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.engines.durable import engine as durable_engine
from mama_spark.malamute.broker.engines.durable.store_reader import StoreFull, StoreReader, store_path
from mama_spark.malamute.broker.engines.jetstream.publisher import PendingPublish, expect_last
from mama_spark.malamute.protocol import ttl
from mama_spark.malamute.protocol.extensions import NO_EXTENSION, AckRun, Extension, StoreOutcome
from mama_spark.malamute.protocol.ttl import ExpiryQueue, TtlRequest, ttl_request_of

from tests.support.malamute.durable_engine import SECOND, EngineHarness
from tests.support.tables import each

TTL, RENEWAL, MARKER = b"Mama-Ttl", b"Mama-Renewal", b"Mama-Marker"
EXPECTED = b"Mama-Expected-Sequence"


class TtlHarness(EngineHarness):
    """An engine, and its deliveries to a client that reads everything."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.folder = folder
        self.engine.compile("r", b"")

    def send(self, subject: bytes, body: bytes = b"x", *, id: str = "", **headers: str) -> AckRun:
        """One message in a batch of its own; ``ttl="5000"`` is ``Mama-Ttl: 5000``."""
        pairs = tuple((b"Mama-" + name.capitalize().encode(), value.encode()) for name, value in headers.items())
        self.engine.accept("w", b"writer", subject, [body], Extension(message_id=id.encode(), headers=pairs))
        (run,) = self.sync()
        return run

    def pass_(self, seconds: float) -> list[bytes]:
        """Let time pass; returns the subjects of the markers delivered."""
        self.now += round(seconds * SECOND)
        self.got.clear()
        self.engine.idle()
        return [d.subject for d in self.got if d.extension is not None and (MARKER, b"MaxAge") in d.extension.headers]

    def standing(self) -> list[tuple[int, bytes, bytes]]:
        """Sequence, subject and content of the messages that STANDING returns, read as by another process."""
        with closing(StoreReader(store_path(self.folder, b"st"))) as reader:
            return [(row[0], row[3], row[4]) for row in reader.read_ttl(0, 1 << 40, 1000, 1 << 30)]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Make]:
    made: list[TtlHarness] = []

    def make(**settings: Any) -> TtlHarness:
        now = made[-1].now if made else 100 * SECOND
        for one in made:
            one.engine.close()
        made.append(TtlHarness(tmp_path, now=now, **settings))
        return made[-1]

    yield make
    made[-1].engine.close()


Make = Callable[..., TtlHarness]


def test_what_nobody_renews_gets_a_numbered_marker_in_time_and_once(engines: Make) -> None:
    one = engines()
    assert one.send(b"a", ttl="5000") == AckRun(StoreOutcome.STORED, 1, 1)
    assert one.pass_(4.9) == []
    assert one.pass_(0.2) == [b"a"]
    (marker,) = one.got
    assert marker.extension is not None
    assert (marker.sender, list(marker.content), marker.extension.sequence) == (b"", [b""], 2)
    assert one.pass_(100) == []
    assert one.send(b"b").first == 3


def test_a_newer_message_of_the_subject_is_what_counts(engines: Make) -> None:
    one = engines()
    one.send(b"a", ttl="5000")
    one.pass_(4)
    one.send(b"a", ttl="5000")
    assert one.pass_(4) == []
    one.send(b"b", ttl="1000")
    one.send(b"a", ttl="500")
    assert one.pass_(0.6) == [b"a"]
    assert one.pass_(0.5) == [b"b"]


@pytest.mark.parametrize("headers", [{}, {"ttl": "0"}, {"other": "1"}])
def test_a_message_without_a_time_to_live_ends_what_ran(engines: Make, headers: dict[str, str]) -> None:
    one = engines()
    one.send(b"a", ttl="5000")
    one.send(b"a", b"x", **headers)
    assert one.pass_(100) == []
    assert one.send(b"a", renewal="1").outcome is StoreOutcome.REFUSED


def test_within_one_batch_the_last_message_of_a_subject_counts_and_a_renewal_finds_it(engines: Make) -> None:
    one = engines()
    short, again = Extension(headers=((TTL, b"1000"),)), Extension(headers=((RENEWAL, b"1"),))
    for subject, extension in ((b"a", short), (b"a", NO_EXTENSION), (b"c", NO_EXTENSION), (b"c", short), (b"c", again)):
        one.engine.accept("w", b"", subject, [b"x"], extension)
    assert one.sync() == (AckRun(StoreOutcome.STORED, 4, 1), AckRun(StoreOutcome.DUPLICATE, 1, 4))
    assert one.pass_(2) == [b"c"]


def test_a_renewal_is_not_stored_and_begins_the_time_anew(engines: Make) -> None:
    one = engines()
    one.send(b"a", ttl="5000")
    for _ in range(3):
        assert one.pass_(4) == []
        assert one.send(b"a", renewal="1") == AckRun(StoreOutcome.DUPLICATE, 1, 1)
    assert one.pass_(5.1) == [b"a"]
    assert one.send(b"a", renewal="1").outcome is StoreOutcome.REFUSED
    assert one.send(b"never", renewal="1").outcome is StoreOutcome.REFUSED
    assert one.engine.store.last == 2


def test_markers_are_stored_in_order_of_expiry_however_late(engines: Make) -> None:
    """SUSPECT before OFFLINE, even if the broker was suspended for some time."""
    one = engines()
    for subject, milliseconds in ((b"rec", "2000"), (b"warn", "1000")):
        one.send(subject, ttl=milliseconds)
    for pause in (0.67, 0.67):
        assert one.pass_(pause) == []
        for subject in (b"rec", b"warn"):
            one.send(subject, renewal="1")
    assert one.pass_(0.5) == []  # warn is to be looked at again later than rec
    assert one.pass_(10) == [b"warn", b"rec"]


def test_a_message_that_comes_again_is_a_renewal_if_it_is_what_runs(engines: Make) -> None:
    one = engines()
    one.send(b"a", id="1", ttl="5000")
    one.pass_(4)
    assert one.send(b"a", id="1", ttl="5000").outcome is StoreOutcome.DUPLICATE
    assert one.pass_(4) == []
    one.send(b"a", id="2", ttl="5000")
    one.pass_(4)
    one.send(b"a", id="1", ttl="5000")
    assert one.pass_(1.1) == [b"a"]


def test_after_a_restart_what_runs_begins_anew_and_what_ended_has_ended(engines: Make) -> None:
    one = engines()
    for subject in (b"a", b"b", b"c"):
        one.send(subject, ttl="5000")
    one.send(b"b")
    one.pass_(4)
    again = engines()
    assert again.pass_(4) == []
    assert sorted(again.pass_(1.1)) == [b"a", b"c"]
    assert engines().pass_(100) == []


def test_what_runs_stands_though_retention_removed_it_and_what_ended_goes_with_the_log(engines: Make) -> None:
    one = engines(max_messages=3)
    one.send(b"a", b"A", ttl="5000")
    one.send(b"b", b"B", ttl="1000")
    one.pass_(1.1)
    assert one.standing() == [(1, b"a", b"A"), (3, b"b", b"")]
    for _ in range(4):
        one.send(b"else")
    assert one.engine.store.first > 3
    assert one.standing() == [(1, b"a", b"A")]
    one = engines(max_messages=3)
    assert one.standing() == [(1, b"a", b"A")]
    assert one.pass_(5.1) == [b"a"]


def test_only_the_engine_writes_markers_and_what_cannot_be_read_is_refused(engines: Make) -> None:
    one = engines()
    for headers in ({"marker": "MaxAge"}, {"ttl": "soon"}):
        assert one.send(b"a", b"x", **headers).outcome is StoreOutcome.REFUSED
    assert one.engine.store.last == 0


def test_what_may_run_is_bounded(engines: Make) -> None:
    one = engines(max_running=2)
    outcomes = [one.send(s, id=s.decode(), ttl="5000").outcome for s in (b"a", b"b", b"c")]
    assert outcomes == [StoreOutcome.STORED, StoreOutcome.STORED, StoreOutcome.REFUSED]
    assert one.send(b"a", ttl="9000").outcome is StoreOutcome.STORED
    assert one.pass_(5.1) == [b"b"]
    assert one.send(b"c", id="c", ttl="5000").outcome is StoreOutcome.STORED, "and its id was not remembered"
    assert one.send(b"d", bytes(ttl.MOST_BYTES + 1), ttl="5000").outcome is StoreOutcome.REFUSED


def test_a_marker_that_cannot_be_stored_comes_later(engines: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engines()
    one.send(b"a", ttl="5000")
    with monkeypatch.context() as m:
        m.setattr(one.engine.store, "append", _full)
        assert one.pass_(5.1) == []
        wait = one.engine.idle()
        assert wait is not None
        assert wait > 0.5, "without turning round all the time"
        assert one.send(b"b", ttl="1000").outcome is StoreOutcome.REFUSED
    assert one.pass_(1.1) == [b"a"]
    assert one.send(b"c").first == 3


def _full(*_: object) -> None:
    raise StoreFull("full")


def test_a_stream_that_uses_none_of_it_has_no_table_and_looks_at_nothing(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_engine, "REST", 0.0)  # else it looks once more, to close its file
    one = engines()
    one.send(b"a", other="1")
    assert not one.engine.store.has_ttl_table
    assert one.standing() == []
    assert one.engine.idle() is None


def swap(one: TtlHarness, *expected: int, subject: bytes = b"a") -> list[tuple[StoreOutcome, int]]:
    """Messages of one batch, each of which expects a sequence."""
    for number in expected:
        headers = ((TTL, b"5000"), (EXPECTED, b"%d" % number))
        one.engine.accept("w", b"writer", subject, [b"%d" % number], Extension(headers=headers))
    return [(run.outcome, run.first + i if run.first else 0) for run in one.sync() for i in range(run.count)]


def test_a_message_that_expects_another_one_is_stored_if_that_one_runs(engines: Make) -> None:
    stored, refused, duplicate = StoreOutcome.STORED, StoreOutcome.REFUSED, StoreOutcome.DUPLICATE
    one = engines()
    assert swap(one, 1) == [(duplicate, 0)]
    assert swap(one, 0, 0, 1) == [(stored, 1), (duplicate, 1), (stored, 2)], "the second of two loses, in one batch too"
    assert swap(one, 0, subject=b"b") == [(stored, 3)]
    one.send(b"other")
    assert swap(one, 1, 2) == [(duplicate, 2), (stored, 5)]
    one = engines()
    assert swap(one, 2, 5) == [(duplicate, 5), (stored, 6)], "after a restart, too"
    assert one.pass_(5.1) == [b"a", b"b"]
    assert swap(one, 6, 0) == [(duplicate, 0), (stored, 9)], "what has expired is not there"
    swap(one, 9, subject=b"b")
    one.engine.accept("w", b"writer", b"a", [b""], Extension(headers=((EXPECTED, b"9"),)))
    assert swap(one) == [(refused, 0)]
    assert one.engine.store.last == 9


@each(
    "headers, outcome, expected",
    [
        (((b"Mama-Ttl", b"5"), (b"Mama-Expected-Sequence", b"7")), None, 7),
        (((b"Mama-Expected-Sequence", b"7"),), StoreOutcome.REFUSED, None),
        (((b"Mama-Renewal", b"1"),), StoreOutcome.REFUSED, None),
    ],
)
def test_headers_of_a_time_to_live_are_refused_as_by_the_durable_engine(
    headers: tuple[tuple[bytes, bytes], ...], outcome: StoreOutcome | None, expected: int | None
) -> None:
    message = PendingPublish(1, "w", 0, b"writer", b"a", [b""], headers=headers)
    expect_last(message)
    assert (message.outcome, message.expected) == (outcome, expected)


def test_one_that_expects_is_numbered_anew_when_those_before_it_are_not_stored(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engines()
    with monkeypatch.context() as m:
        m.setattr(one.engine.store, "append", _full)
        one.engine.accept("v", b"writer", b"other", [b"lost"], Extension(message_id=b"1"))
        one.engine.accept("w", b"writer", b"a", [b"x"], Extension(headers=((TTL, b"5000"), (EXPECTED, b"0"))))
        m.undo()
        one.engine.flush()
    assert one.engine.store.last == 1
    assert one.standing() == [(1, b"a", b"x")]


@given(st.lists(st.tuples(st.sampled_from(["start", "renew", "end", "look"]), st.integers(0, 3), st.integers(1, 9))))
def test_running_timers_agree_with_a_model(steps: list[tuple[str, int, int]]) -> None:
    """The heap is compared with a scan of all subjects."""
    now = 0.0
    kept, model = ExpiryQueue(lambda: now), dict[bytes, tuple[float, int]]()
    for number, (step, which, amount) in enumerate(steps):
        subject = b"%d" % which
        if step == "start":
            kept.start(subject, number, amount)
            model[subject] = now + amount, amount
        elif step == "renew":
            assert (kept.renew(subject) is None) == (subject not in model)
            if subject in model:
                model[subject] = now + model[subject][1], model[subject][1]
        elif step == "end":
            kept.end(subject)
            model.pop(subject, None)
        else:
            now += amount / 2
            found = kept.expired()
            assert found == [s for due, s in sorted((due, s) for s, (due, _) in model.items()) if due <= now]
            for one in found:
                kept.end(one)
                del model[one]
        due = kept.next
        assert not model or (due is not None and due <= min(at for at, _ in model.values()))


def test_a_subject_that_begins_and_ends_for_ever_costs_no_memory() -> None:
    ticks = itertools.count()
    kept = ExpiryQueue(lambda: float(next(ticks)))
    for number in range(20_000):
        kept.start(b"a", number, 1e6)
        kept.end(b"a")
    assert len(kept._heap) < 2000


@each(
    ("headers", "wanted"),
    [
        (((b"x", b"1"),), TtlRequest()), (((TTL, b"20"),), TtlRequest(20)),
        (((TTL, b"20"), (EXPECTED, b"0")), TtlRequest(20, expected=0)),
        (((TTL, b"20"), (RENEWAL, b"")), TtlRequest(renews=True)), (((RENEWAL, b""), (MARKER, b"x")), None),
        (((TTL, b""),), None), (((TTL, "²".encode()),), None), (((TTL, b"1" + b"0" * 12 + b"0"),), None),
        (((TTL, b"20"), (EXPECTED, b"-1")), None), (((EXPECTED, b"9"),), None),
        (((RENEWAL, b"1"), (TTL, b"5"), (EXPECTED, b"9")), None),
    ],
)  # fmt: skip
def test_the_headers_say_what_is_wanted(headers: tuple[tuple[bytes, bytes], ...], wanted: TtlRequest | None) -> None:
    assert ttl_request_of(headers) == wanted

"""What every stream engine must pass. Inherit and name the engine; that is the whole test::

    class TestMine(EngineSuite):
        @pytest.fixture
        def kind(self):
            return EngineKind(MyEngine)

The suite drives the engine as the broker does: in a thread of its own, over inproc sockets, in batches.
"""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq

from ..malamute.engines import Delivery, StreamEngine
from ..malamute.engines.actor import Report, Stream, Taken, Traffic
from ..malamute.extensions import NOTHING, Extension, Outcome

PATIENCE = 60.0  #: seconds for what a sound engine does at once


@dataclass(frozen=True)
class EngineKind:
    """The engine under test.

    :ivar settings: of a fresh stream, each time the same place
    :ivar stored: it stores and numbers what it accepts
    :ivar bad_patterns: what it refuses
    """

    engine: type[StreamEngine] | str
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored: bool = False
    bad_patterns: tuple[bytes, ...] = (b"(", b"[", b"*", b"a**", b")", b"(a*)*")


class Ref:
    """A client as the server would refer to it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Ref {self.name}>"


class Site:
    """Streams of one kind and the server's end of them."""

    def __init__(self, kind: EngineKind) -> None:
        self.kind = kind
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.traffic = Traffic(self.context)
        self.made: list[Stream] = []

    def stream(self, name: bytes = b"st", traffic: bool = True) -> Stream:
        stream = Stream(self.context, name, self.kind.engine, self.kind.settings)
        self.made.append(stream)
        if traffic:
            self.traffic.add(stream)
            assert self.answers(stream) == [Taken()]
        return stream

    def report(self, stream: Stream, answers: int) -> Report:
        """All that the stream says until it has given this many answers."""
        stream.flush()
        found: Report = []
        end = time.monotonic() + PATIENCE
        while sum(isinstance(one, Taken) for one in found) < answers:
            assert time.monotonic() < end, f"{found} and no more"
            taken = self.traffic.take(1.0)
            if taken is not None:
                assert taken[0] is stream
                found += taken[1]
        return found

    def answers(self, stream: Stream, n: int = 1) -> list[Taken]:
        return [one for one in self.report(stream, n) if isinstance(one, Taken)]

    def compile(self, stream: Stream, client: Hashable, *patterns: bytes) -> None:
        for pattern in patterns:
            stream.compile(client, pattern)
        assert self.answers(stream, len(patterns)) == [Taken()] * len(patterns)

    def cancel(self, stream: Stream, client: Hashable) -> None:
        stream.cancel(client)
        assert self.answers(stream) == [Taken()]

    def publish(self, stream: Stream, client: Hashable, *subjects: bytes) -> list[tuple[Hashable, bytes]]:
        """What is delivered of these: client and subject, in order."""
        for subject in subjects:
            stream.accept(client, b"sender", subject, [b"content"])
        return [(d.client, d.subject) for d in self.deliveries(stream)]

    def deliveries(self, stream: Stream) -> list[Delivery]:
        stream.sync(Ref("who asks"))
        return [one for one in self.report(stream, 1) if isinstance(one, Delivery)]

    def close(self) -> None:
        for stream in self.made:
            stream.destroy(PATIENCE)
            assert "ended" in repr(stream), "the thread ends"
        self.traffic.close()
        self.context.term()


class EngineSuite:
    """The rules of the stream API (ML-08..ML-19), and the reference's tests of its engine."""

    @pytest.fixture
    def kind(self) -> EngineKind:
        raise NotImplementedError

    @pytest.fixture
    def site(self, kind: EngineKind) -> Iterator[Site]:
        site = Site(kind)
        yield site
        site.close()

    def test_start_verbose_destroy(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        """E1, ML-09..ML-11"""
        caplog.set_level(logging.INFO, "mama_spark.malamute")
        stream = site.stream()
        stream.verbose()
        site.compile(stream, Ref("r"), b"x")
        site.publish(stream, Ref("w"), b"x")
        for name in ("COMPILE", "ACCEPT"):
            assert name in caplog.text

    def test_a_stream_that_was_never_used_ends(self, site: Site) -> None:
        site.stream(traffic=False)

    def test_what_matches_is_delivered_in_order_with_its_sender_and_content(self, site: Site) -> None:
        """ML-12, ML-15, ML-19"""
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        site.compile(stream, r, b"^temp")
        content = [[b"1"], [], [b""], [b"two", b"frames"]]
        for n, body in enumerate(content):
            stream.accept(w, b"writer", b"temp.%d" % n, body)
            stream.accept(w, b"writer", b"rain.%d" % n, body)
        got = site.deliveries(stream)
        assert [(d.client, d.sender, d.subject) for d in got] == [(r, b"writer", b"temp.%d" % n) for n in range(4)]
        assert [list(d.content) for d in got] == content

    def test_everything_on_one_stream_stays_in_order(self, site: Site) -> None:
        """A subscription counts for what comes behind it, within one batch too."""
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        stream.accept(w, b"", b"before", [])
        stream.compile(r, b"")
        stream.accept(w, b"", b"between", [])
        stream.cancel(r)
        stream.accept(w, b"", b"after", [])
        report = site.report(stream, 2)
        assert [one.subject for one in report if isinstance(one, Delivery)] == [b"between"]
        assert report.index(Taken()) == 0

    def test_own_messages_do_not_come_back(self, site: Site) -> None:
        """ML-15"""
        stream, a, b = site.stream(), Ref("a"), Ref("b")
        site.compile(stream, a, b"")
        site.compile(stream, b, b"")
        assert site.publish(stream, a, b"1") == [(b, b"1")]

    def test_one_copy_however_many_patterns_match(self, site: Site) -> None:
        """ML-25; the reference sends one a pattern"""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"temp.*", b".*", b"t", b"temp.*")
        assert site.publish(stream, Ref("w"), b"temp.x", b"rain.x") == [(r, b"temp.x"), (r, b"rain.x")]

    def test_compile_is_idempotent_and_one_pattern_serves_many_clients(self, site: Site) -> None:
        """ML-12; the example of the specification forgets the second client of a pattern"""
        stream, refs = site.stream(), [Ref(str(n)) for n in range(3)]
        for ref in refs:
            site.compile(stream, ref, b"p", b"p")
        got = site.publish(stream, Ref("w"), b"p")
        assert len(got) == 3
        assert {client for client, _ in got} == set(refs)

    def test_cancel_ends_all_of_one_client_and_is_idempotent(self, site: Site) -> None:
        """ML-14"""
        stream, a, b = site.stream(), Ref("a"), Ref("b")
        site.cancel(stream, Ref("unknown"))
        site.compile(stream, a, b"x", b"y")
        site.compile(stream, b, b"x")
        site.cancel(stream, a)
        site.cancel(stream, a)
        assert site.publish(stream, Ref("w"), b"x", b"y") == [(b, b"x")]
        site.compile(stream, a, b"y")
        assert site.publish(stream, Ref("w"), b"x", b"y") == [(b, b"x"), (a, b"y")]

    def test_traffic_is_idempotent_and_goes_to_the_first_endpoint(self, site: Site) -> None:
        """ML-18"""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        other = Traffic(site.context)
        for endpoint in (site.traffic.endpoint, other.endpoint):
            stream.traffic(endpoint)
            assert site.answers(stream) == [Taken()]
        assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")]
        assert other.take(0.0) is None
        other.close()

    def test_an_empty_subject_is_a_subject(self, site: Site) -> None:
        stream, everything, nothing = site.stream(), Ref("everything"), Ref("nothing")
        site.compile(stream, everything, b"")
        site.compile(stream, nothing, b".")
        assert site.publish(stream, Ref("w"), b"") == [(everything, b"")]

    def test_unknown_commands_are_logged_and_nothing_else(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        stream._frames(b"NONSENSE", b"and", b"more")
        stream.post([("RUBBISH", r, 1)])
        assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")]
        for name in ("NONSENSE", "RUBBISH"):
            assert f"unknown command {name!r}" in caplog.text.replace("b'", "'")

    def test_bad_patterns_are_refused_and_change_nothing(self, site: Site) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"good")
        for pattern in site.kind.bad_patterns:
            stream.compile(r, pattern)
            (answer,) = site.answers(stream)
            assert answer.error, pattern
        assert site.publish(stream, Ref("w"), b"good", b"bad", b"") == [(r, b"good")]

    def test_hostile_patterns_do_not_stall_the_stream(self, site: Site) -> None:
        stream, r, hostile = site.stream(), Ref("r"), Ref("hostile")
        for pattern in (b"(a+)+$", b"(x+x+)+y", b".*a.{200}", b"(a|a)+$", b"(a{1,15}){1,15}b", b"(.*a){20}"):
            stream.compile(hostile, pattern)
        site.answers(stream, 6)
        site.compile(stream, r, b"!$")
        got = site.publish(stream, Ref("w"), *[b"a" * 254 + b"!"] * 100)
        assert sum(client is r for client, _ in got) == 100

    def test_octets_that_are_no_text_pass(self, site: Site) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"\xff\xfe")
        assert site.publish(stream, Ref("w"), b"\xff\xfe\x80", b"\xff") == [(r, b"\xff\xfe\x80")]

    def test_a_consumer_leaves_while_its_message_is_in_the_engine(self, site: Site) -> None:
        """S6: no use after free. The reference lives as long as something refers to it, and no longer."""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        for n in range(1000):
            stream.accept(Ref("w"), b"", b"%d" % n, [b"x"])
        stream.cancel(r)
        gone = weakref.ref(r)
        report = site.report(stream, 1)
        assert len([one for one in report if isinstance(one, Delivery)]) == 1000
        del r, report
        site.publish(stream, Ref("w"), b"last")
        gc.collect()
        assert gone() is None, "an engine forgets a client that was cancelled"

    def test_streams_do_not_hear_each_other(self, site: Site) -> None:
        """ML-08"""
        one, two, r = site.stream(b"one"), site.stream(b"two"), Ref("r")
        site.compile(one, r, b"")
        site.compile(two, r, b"")
        assert site.publish(one, Ref("w"), b"1") == [(r, b"1")]
        assert site.publish(two, Ref("w"), b"2") == [(r, b"2")]

    def test_large_and_many_frames_pass_by_reference(self, site: Site) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        content = [b"x" * 5_000_000, *[b"y"] * 299]
        stream.accept(Ref("w"), b"", b"s", content)
        (delivery,) = site.deliveries(stream)
        assert delivery.content is content

    def test_ids_and_headers_travel_beside_the_message(self, site: Site) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        extension = Extension(message_id=b"id", headers=((b"k", b"v"),))
        stream.accept(Ref("w"), b"", b"s", [], extension)
        (delivery,) = site.deliveries(stream)
        assert delivery.extension is not None
        assert (delivery.extension.message_id, delivery.extension.headers) == (b"id", extension.headers)

    def test_sync_tells_what_became_of_what_was_sent_before_it(self, site: Site) -> None:
        stream, w, other = site.stream(), Ref("w"), Ref("other")
        for n in range(3):
            stream.accept(w, b"", b"%d" % n, [], NOTHING)
        stream.accept(other, b"", b"x", [], NOTHING)
        stream.sync(w)
        stream.accept(w, b"", b"3", [], NOTHING)
        stream.sync(w)
        stream.sync(w)
        first, second, third = site.answers(stream, 3)
        if not site.kind.stored:
            assert (first.runs, second.runs, third.runs) == ((), (), ())
            return
        assert [sum(run.count for run in answer.runs) for answer in (first, second, third)] == [3, 1, 0]
        assert {run.outcome for run in (*first.runs, *second.runs)} == {Outcome.STORED}
        assert 0 < first.runs[0].first < second.runs[0].first

    def test_credit_given_to_an_engine_never_loses_a_message(self, site: Site) -> None:
        """ML-07, ML-21: an engine either leaves holding to the broker or delivers the rest on further credit."""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        stream.credit(r, 2)
        got = site.publish(stream, Ref("w"), *[b"%d" % n for n in range(5)])
        stream.credit(r, 10)
        got += site.publish(stream, Ref("w"), b"5")
        assert got == [(r, b"%d" % n) for n in range(6)]

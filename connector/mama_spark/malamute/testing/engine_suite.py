"""Tests that every stream engine must pass. Inherit and name the engine; that is the whole test::

    class TestMine(EngineSuite):
        @pytest.fixture
        def kind(self):
            return EngineKind(MyEngine)

An engine that answers questions about what it stores (its ``ask``) inherits :class:`ReadableEngineSuite` instead.
The suite drives the engine as the broker does: in its threads, in batches.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Hashable, Iterator

import pytest

from ..broker.engines import Delivery
from ..broker.engines.commands import CommandDone
from ..protocol.extensions import NO_EXTENSION, Extension, StoreOutcome
from ..protocol.message_blocks import MessageBlock
from .driven_stream import TIMEOUT, EngineKind, EngineSetup, Ref
from .log_query_rules import QueryRules, ReadableRules

__all__ = ["TIMEOUT", "EngineKind", "EngineSetup", "EngineSuite", "ReadableEngineSuite", "Ref"]


class EngineSuite(QueryRules):
    """The rules of the stream API."""

    @pytest.fixture
    def kind(self) -> EngineKind:
        raise NotImplementedError

    @pytest.fixture
    def site(self, kind: EngineKind) -> Iterator[EngineSetup]:
        site = EngineSetup(kind)
        yield site
        site.close()

    @pytest.mark.spec("ML-03", "ML-13")
    def test_a_client_is_any_reference_and_a_pattern_is_for_the_engine_alone(self, site: EngineSetup) -> None:
        """The engine passes the reference itself; equal references are one client."""
        stream = site.stream()
        clients: list[Hashable] = [Ref("r"), 7, "seven", b"7", ("a", 1), frozenset("x"), None]
        for client in clients:
            site.compile(stream, client, b"^s")
        got = site.publish(stream, ("a", 1), b"s", b"t")
        assert [subject for _, subject in got] == [b"s"] * (len(clients) - 1)
        assert {client for client, _ in got} == {*clients} - {("a", 1)}
        assert any(client is clients[0] for client, _ in got)

    @pytest.mark.spec("ML-12", "ML-15", "ML-19")
    def test_what_matches_is_delivered_in_order_with_its_sender_and_content(self, site: EngineSetup) -> None:
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        site.compile(stream, r, b"^temp")
        content = [[b"1"], [], [b""], [b"two", b"frames"]]
        for n, body in enumerate(content):
            stream.accept(w, b"writer", b"temp.%d" % n, body)
            stream.accept(w, b"writer", b"rain.%d" % n, body)
        got = site.deliveries(stream)
        assert [(d.client, d.sender, d.subject) for d in got] == [(r, b"writer", b"temp.%d" % n) for n in range(4)]
        assert [list(d.content) for d in got] == content

    def test_everything_on_one_stream_stays_in_order(self, site: EngineSetup) -> None:
        """A subscription counts for what comes behind it, within one batch too."""
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        stream.accept(w, b"", b"before", [])
        stream.compile(r, b"")
        stream.accept(w, b"", b"between", [])
        stream.cancel(r)
        stream.accept(w, b"", b"after", [])
        report = site.report(stream, 2)
        assert [one.subject for one in report if isinstance(one, Delivery)] == [b"between"]
        assert report.index(CommandDone()) == 0

    @pytest.mark.spec("ML-15")
    def test_own_messages_do_not_come_back(self, site: EngineSetup) -> None:
        stream, a, b = site.stream(), Ref("a"), Ref("b")
        site.compile(stream, a, b"")
        site.compile(stream, b, b"")
        assert site.publish(stream, a, b"1") == [(b, b"1")]

    @pytest.mark.spec("ML-25")
    def test_one_copy_however_many_patterns_match(self, site: EngineSetup) -> None:
        """The reference sends one a pattern."""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"temp.*", b".*", b"t", b"temp.*")
        assert site.publish(stream, Ref("w"), b"temp.x", b"rain.x") == [(r, b"temp.x"), (r, b"rain.x")]

    @pytest.mark.spec("ML-12")
    def test_compile_is_idempotent_and_one_pattern_serves_many_clients(self, site: EngineSetup) -> None:
        """The example of the specification forgets the second client of a pattern."""
        stream, refs = site.stream(), [Ref(str(n)) for n in range(3)]
        for ref in refs:
            site.compile(stream, ref, b"p", b"p")
        got = site.publish(stream, Ref("w"), b"p")
        assert len(got) == 3
        assert {client for client, _ in got} == set(refs)

    @pytest.mark.spec("ML-14")
    def test_cancel_ends_all_of_one_client_and_is_idempotent(self, site: EngineSetup) -> None:
        stream, a, b = site.stream(), Ref("a"), Ref("b")
        site.cancel(stream, Ref("unknown"))
        site.compile(stream, a, b"x", b"y")
        site.compile(stream, b, b"x")
        site.cancel(stream, a)
        site.cancel(stream, a)
        assert site.publish(stream, Ref("w"), b"x", b"y") == [(b, b"x")]
        site.compile(stream, a, b"y")
        assert site.publish(stream, Ref("w"), b"x", b"y") == [(b, b"x"), (a, b"y")]

    def test_an_empty_subject_is_a_subject(self, site: EngineSetup) -> None:
        stream, everything, nothing = site.stream(), Ref("everything"), Ref("nothing")
        site.compile(stream, everything, b"")
        site.compile(stream, nothing, b".")
        assert site.publish(stream, Ref("w"), b"") == [(everything, b"")]

    def test_bad_patterns_are_refused_and_change_nothing(self, site: EngineSetup) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"good")
        for pattern in site.kind.bad_patterns:
            stream.compile(r, pattern)
            (answer,) = site.answers(stream)
            assert answer.error, pattern
        assert site.publish(stream, Ref("w"), b"good", b"bad", b"") == [(r, b"good")]

    def test_hostile_patterns_do_not_stall_the_stream(self, site: EngineSetup) -> None:
        stream, r, hostile = site.stream(), Ref("r"), Ref("hostile")
        for pattern in (b"(a+)+$", b"(x+x+)+y", b".*a.{200}", b"(a|a)+$", b"(a{1,15}){1,15}b", b"(.*a){20}"):
            stream.compile(hostile, pattern)
        site.answers(stream, 6)
        site.compile(stream, r, b"!$")
        got = site.publish(stream, Ref("w"), *[b"a" * 254 + b"!"] * 100)
        assert sum(client is r for client, _ in got) == 100

    @pytest.mark.spec("ML-13")
    def test_bytes_that_are_no_text_pass(self, site: EngineSetup) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"\xff\xfe")
        assert site.publish(stream, Ref("w"), b"\xff\xfe\x80", b"\xff") == [(r, b"\xff\xfe\x80")]

    @pytest.mark.spec("S6")
    def test_a_consumer_leaves_while_its_message_is_in_the_engine(self, site: EngineSetup) -> None:
        """No use after free. The reference lives as long as something refers to it, and no longer."""
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

    @pytest.mark.spec("ML-08", "ML-17", "ML-16")
    def test_streams_do_not_hear_each_other(self, site: EngineSetup) -> None:
        one, two, r = site.stream(b"one"), site.stream(b"two"), Ref("r")
        site.compile(one, r, b"")
        site.compile(two, r, b"")
        assert site.publish(one, Ref("w"), b"1") == [(r, b"1")]
        assert site.publish(two, Ref("w"), b"2") == [(r, b"2")]

    def test_large_and_many_frames_pass_by_reference(self, site: EngineSetup) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        content = [b"x" * 5_000_000, *[b"y"] * 299]
        stream.accept(Ref("w"), b"", b"s", content)
        (delivery,) = site.deliveries(stream)
        assert delivery.content is content

    def test_ids_and_headers_travel_beside_the_message(self, site: EngineSetup) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        extension = Extension(message_id=b"id", headers=((b"k", b"v"),))
        stream.accept(Ref("w"), b"", b"s", [], extension)
        (delivery,) = site.deliveries(stream)
        assert delivery.extension is not None
        assert (delivery.extension.message_id, delivery.extension.headers) == (b"id", extension.headers)

    def test_a_block_is_its_messages(self, site: EngineSetup) -> None:
        """Ids of the second are known, and stand twice in the third: an engine that stores leaves those out."""
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        site.compile(stream, r, b"^[ab]")
        site.compile(stream, w, b"")
        headers = ((b"k", b"v"),)
        blocks = [
            MessageBlock([b"a", b"c", b"b"], [b"1", b"2", b"3"]),
            MessageBlock([b"a", b"b"], [b"4", b"5"], [b"id4", b"id5"]),
            MessageBlock([b"a", b"a", b"b"], [b"4", b"6", b"7"], [b"id4", b"", b"id7"]),
            MessageBlock([b"a", b"a"], [b"8", b"8"], [b"id8", b"id8"]),
            MessageBlock(
                [b"a", b"b"],
                [b"9", b"10"],
                [b"", b"id10"],
                [NO_EXTENSION, Extension(message_id=b"id10", headers=headers)],
            ),
        ]
        for block in blocks:
            stream.accept_block(w, b"sender", block)
        found = site.deliveries(stream)
        assert {(d.client, d.sender) for d in found} == {(r, b"sender")}
        got = [(d.subject, *d.content, (d.extension or NO_EXTENSION).message_id) for d in found]
        sent = [(s, c, m.message_id) for block in blocks for s, (c,), m in block.messages() if s != b"c"]
        known = {(b"a", b"4", b"id4"), (b"a", b"8", b"id8")} if site.kind.stored else set()
        assert got == [one for i, one in enumerate(sent) if one not in known or one not in sent[:i]]
        assert found[-1].extension is not None
        assert found[-1].extension.headers == headers

    def test_a_subscription_begins_behind_the_reported_position(self, site: EngineSetup) -> None:
        stream, r, w = site.stream(), Ref("r"), Ref("w")
        for n in range(3):
            stream.accept(w, b"", b"%d" % n, [], NO_EXTENSION)
        stream.compile(r, b"")
        (answer,) = site.answers(stream)
        assert (answer.position is not None) is site.kind.stored
        stream.accept(w, b"", b"3", [])
        (delivery,) = site.deliveries(stream)
        if answer.position is not None:
            assert delivery.extension is not None
            assert delivery.extension.sequence == answer.position + 1

    def test_sync_tells_what_became_of_what_was_sent_before_it(self, site: EngineSetup) -> None:
        stream, w, other = site.stream(), Ref("w"), Ref("other")
        for n in range(3):
            stream.accept(w, b"", b"%d" % n, [], NO_EXTENSION)
        stream.accept(other, b"", b"x", [], NO_EXTENSION)
        stream.sync(w)
        stream.accept(w, b"", b"3", [], NO_EXTENSION)
        stream.sync(w)
        stream.sync(w)
        first, second, third = site.answers(stream, 3)
        if not site.kind.stored:
            assert (first.runs, second.runs, third.runs) == ((), (), ())
            return
        assert [sum(run.count for run in answer.runs) for answer in (first, second, third)] == [3, 1, 0]
        assert {run.outcome for run in (*first.runs, *second.runs)} == {StoreOutcome.STORED}
        assert 0 < first.runs[0].first < second.runs[0].first

    @pytest.mark.spec("ML-07", "ML-21")
    def test_credit_given_to_an_engine_never_loses_a_message(self, site: EngineSetup) -> None:
        """An engine either leaves holding to the broker or delivers the rest on further credit."""
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        stream.credit(r, 2)
        got = site.publish(stream, Ref("w"), *[b"%d" % n for n in range(5)])
        stream.credit(r, 10)
        got += site.publish(stream, Ref("w"), b"5")
        end = time.monotonic() + TIMEOUT
        while len(got) < 6 and time.monotonic() < end:  # what is replayed may take its time
            got += [(d.client, d.subject) for d in site.deliveries(stream)]
        assert got == [(r, b"%d" % n) for n in range(6)]


class ReadableEngineSuite(EngineSuite, ReadableRules):
    """Tests of an engine that answers questions about what it stores, too."""

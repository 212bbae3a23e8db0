"""Log queries that every engine with stored streams must answer (:mod:`mama_spark.malamute.protocol.log_query`).

Parts of :class:`~.engine_suite.EngineSuite` and its extension for engines that answer. Each answer is of one moment,
bounded, and of all that was accepted before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import count

import pytest

from ..broker.engines import engine_class
from ..broker.engines.commands import QueryAnswered
from ..broker.engines.log_queries import MAX_PATTERNS
from ..protocol import commands
from ..protocol.commands import StatusCode, StreamDeliver
from ..protocol.extensions import NO_EXTENSION, Extension, read
from ..protocol.log_query import LogQuery, Op, Selection, parse_numbers
from .driven_stream import DrivenStream, EngineKind, EngineSetup, Ref

_FAR = 2**63 - 1
_FETCHES = (Op.FETCH, Op.BLOCK)
_Found = tuple[int, bytes, tuple[bytes, ...], Extension]  #: sequence, subject, content, what travels beside it


class QueryClient:
    """Publishes to one stream and queries it."""

    def __init__(self, site: EngineSetup, stream: DrivenStream) -> None:
        self.site, self.stream, self.identity = site, stream, b""
        self._numbers = count(7)

    def accept(self, subject: bytes, *content: bytes, extension: Extension = NO_EXTENSION) -> None:
        self.stream.accept(Ref("w"), b"writer", subject, list(content), extension)

    def ask(
        self, op: Op, *numbers: int, text: bytes = b"", kind: Selection = Selection.ALL, texts: tuple[bytes, ...] = ()
    ) -> QueryAnswered:
        question = LogQuery(op, next(self._numbers), self.stream.name, numbers, text, kind, texts)
        (found,) = self.site.ask(self.stream, question)
        if found.answer.code == StatusCode.SUCCESS:
            assert found.answer.identity
            assert self.identity in (b"", found.answer.identity)
            self.identity = found.answer.identity
        return found

    def numbers(self, op: Op, *values: int) -> tuple[int, ...]:
        """All numbers of an answer."""
        body = self._body(self.ask(op, *values))
        return parse_numbers(body, len(body) // 8)[0]

    def bounds(self) -> tuple[int, ...]:
        return parse_numbers(self._body(self.ask(Op.BOUNDS)), 2)[0]

    @staticmethod
    def _body(found: QueryAnswered) -> bytes:
        assert found.answer.code == StatusCode.SUCCESS, found.answer
        assert found.answer.pack(), "it fits into a field"
        return found.answer.body

    def fetch(
        self,
        op: Op,
        after: int = 0,
        up_to: int = _FAR,
        rows: int = 1000,
        max_bytes: int = 1_000_000,
        kind: Selection = Selection.ALL,
        texts: tuple[bytes, ...] = (),
    ) -> tuple[list[_Found], int]:
        """The messages, and the sequence up to which the engine looked."""
        found = self.ask(op, after, up_to, rows, max_bytes, kind=kind, texts=texts)
        (reached, last), _ = parse_numbers(self._body(found), 2)
        frames = found.records if op is Op.FETCH else _unpacked(found.records)
        messages = [self._message(one) for one in frames]
        sequences = [message[0] for message in messages]
        assert sequences == sorted(set(sequences))
        assert all(after < n <= min(reached, up_to, last) for n in sequences)
        return messages, reached

    def pieces(self, op: Op, rows: int = 1000, max_bytes: int = 1_000_000) -> list[list[_Found]]:
        """Everything, in as many answers as it takes."""
        found: list[list[_Found]] = []
        after, last = 0, self.bounds()[1]
        while after < last:
            some, reached = self.fetch(op, after, last, rows, max_bytes)
            assert reached > after, "each answer goes on"
            after = reached
            found.append(some)
        return found

    def _message(self, frames: Sequence[bytes]) -> _Found:
        message = commands.decode(frames)
        assert isinstance(message, StreamDeliver)
        assert (message.address, message.sender) == (self.stream.name, b"writer")
        beside = read(message.trailing)
        assert beside.sequence is not None
        assert beside.time is not None
        return beside.sequence, message.subject, tuple(message.content), beside


def _unpacked(records: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
    if not records:
        return []
    ((_, lengths, heads, contents),) = records
    n = len(lengths) // 8
    sizes = struct.unpack(f">{2 * n}I", lengths)
    assert (sum(sizes[:n]), sum(sizes[n:])) == (len(heads), len(contents))
    found, at, start = [], 0, 0
    for size, content_bytes in zip(sizes[:n], sizes[n:], strict=True):
        found.append([heads[at : at + size], contents[start : start + content_bytes]])
        at, start = at + size, start + content_bytes
    return found


class QueryRules:
    """Rules of every engine."""

    @pytest.mark.spec("ML-22")
    def test_an_engine_answers_questions_or_says_why_not(self, site: EngineSetup, kind: EngineKind) -> None:
        stream, r = site.stream(), Ref("r")
        site.compile(stream, r, b"")
        cls = engine_class(kind.engine) if isinstance(kind.engine, str) else kind.engine
        unreadable = cls.unreadable(stream.name, kind.settings)
        assert unreadable or isinstance(self, ReadableRules), "an engine that answers is held to ReadableEngineSuite"
        numbers: dict[Op, tuple[int, ...]] = {
            Op.BOUNDS: (), Op.AT: (0,), Op.MISSING: (0, 9), Op.TRIM: (0,), Op.MATCH: (0, 9, 9),
        }  # fmt: skip
        ops = [op for op in Op if op is not Op.NAMES]  # which the broker answers
        questions = [LogQuery(op, 90 - op, stream.name, numbers.get(op, (0, 9, 9, 9))) for op in ops]
        for found in site.ask(stream, *questions):
            if unreadable:
                assert (found.answer.code, found.records) == (StatusCode.NOT_IMPLEMENTED, [])
                assert found.answer.reason == unreadable.encode()
            else:
                assert found.answer.code != StatusCode.NOT_IMPLEMENTED
        assert site.publish(stream, Ref("w"), b"s") == [(r, b"s")], "and it goes on"


class ReadableRules:
    """Rules of an engine that answers queries (ML-22)."""

    @pytest.fixture
    def client(self, site: EngineSetup) -> QueryClient:
        return QueryClient(site, site.stream())

    def test_an_empty_stream_answers_too(self, client: QueryClient) -> None:
        assert client.bounds() == (1, 0)
        assert [client.fetch(op) for op in _FETCHES] == [([], 0)] * 2
        assert client.numbers(Op.AT, _FAR) == (1,)
        assert client.numbers(Op.MISSING, 0, 10) == (10,)

    def test_a_question_sees_what_was_accepted_before_it_in_its_batch(self, client: QueryClient) -> None:
        for n in range(1, 4):
            client.accept(b"s")
            assert client.bounds() == (1, n)

    @pytest.mark.spec("ML-22")
    @pytest.mark.parametrize("op", _FETCHES)
    def test_what_is_fetched_is_what_was_accepted(self, client: QueryClient, op: Op) -> None:
        """A block has the frames of each message together."""
        contents = [[b"one"], [], [b""], [b"two", b"", b"frames"], [b"x" * 100_000], [b"\0\xff"]]
        headers = ((b"k", b"v"), (b"k", b"w"))
        for n, content in enumerate(contents):
            client.accept(b"\xff.%d" % n, *content, extension=Extension(message_id=b"%d" % n, headers=headers[: n % 3]))
        (found,) = client.pieces(op)
        assert [n for n, *_ in found] == [1, 2, 3, 4, 5, 6]
        assert [subject for _, subject, *_ in found] == [b"\xff.%d" % n for n in range(6)]
        wanted = contents if op is Op.FETCH else [[b"".join(content)] for content in contents]
        assert [list(content) for *_, content, _ in found] == wanted
        assert [(x.message_id, x.headers) for *_, x in found] == [(b"%d" % n, headers[: n % 3]) for n in range(6)]

    @pytest.mark.parametrize("op", _FETCHES)
    def test_an_answer_brings_no_more_than_was_asked_for_and_a_large_message_alone(
        self, client: QueryClient, op: Op
    ) -> None:
        for n in range(20):
            client.accept(b"%d" % n, b"x" * (50_000 if n % 5 == 4 else 100))
        for rows, max_bytes in ((3, 1_000_000), (1000, 10_000), (1, 1)):
            pieces = client.pieces(op, rows, max_bytes)
            assert [n for piece in pieces for n, *_ in piece] == list(range(1, 21))
            for piece in pieces:
                sizes = [len(content[0]) for _, _, content, _ in piece]
                assert len(piece) <= rows
                assert sum(sizes[:-1]) < max_bytes, "the last one that fits not whole comes, too, or nothing would"
        assert [n for n, *_ in client.fetch(op, 5, 9)[0]] == [6, 7, 8, 9]

    @pytest.mark.parametrize("op", _FETCHES)
    def test_only_what_was_selected_comes_and_what_was_looked_at_counts(self, client: QueryClient, op: Op) -> None:
        for n in range(12):
            client.accept((b"temp.a", b"temp.b", b"rain.a")[n % 3])
        asked = {
            (Selection.SUBJECTS, (b"rain.a", b"no such")): [3, 6, 9, 12],
            (Selection.PATTERNS, (b"^temp", b"b$")): [1, 2, 4, 5, 7, 8, 10, 11],
            (Selection.PATTERNS, (b"nothing",)): [],
        }
        for (kind, texts), wanted in asked.items():
            found, reached = client.fetch(op, kind=kind, texts=texts)
            assert ([n for n, *_ in found], reached) == (wanted, 12)
        for texts in ((b"(",), (b"(a*)*",), (b"x",) * (MAX_PATTERNS + 1)):
            refused = client.ask(op, 0, 9, 9, 9, kind=Selection.PATTERNS, texts=texts)
            assert (refused.answer.code, refused.records) == (StatusCode.FAILED, [])
            assert refused.answer.reason

    def test_ids_are_found_by_what_they_begin_with(self, client: QueryClient) -> None:
        for n in range(300):
            client.accept(b"%c" % (97 + n % 2), b"x", extension=Extension(message_id=b"%d-%d" % (n % 3, n)))
        client.accept(b"a", b"without an id")

        def found(prefix: bytes, kind: Selection = Selection.ALL, texts: tuple[bytes, ...] = ()) -> dict[int, bytes]:
            some, after = dict[int, bytes](), 0
            while after < 301:
                got = client.ask(Op.IDS, after, _FAR, 70, 1_000_000, text=prefix, kind=kind, texts=texts)
                (reached, last), _ = parse_numbers(client._body(got), 2)
                assert after < reached <= last == 301
                for _, sequences, lengths, joined in got.records:
                    at = 0
                    for i, length in enumerate(struct.unpack(f">{len(lengths) // 2}H", lengths)):
                        some[int.from_bytes(sequences[8 * i : 8 * i + 8], "big")] = joined[at : at + length]
                        at += length
                after = reached
            return some

        wanted = {n + 1: b"%d-%d" % (n % 3, n) for n in range(300)}
        assert found(b"") == wanted
        assert found(b"1-") == {n: one for n, one in wanted.items() if one.startswith(b"1-")}
        one_subject = {n: one for n, one in wanted.items() if n % 2 and one.startswith(b"2-")}
        assert found(b"2-", Selection.SUBJECTS, (b"a",)) == one_subject
        assert found(b"3-") == {}

    def test_times_find_their_messages(self, client: QueryClient) -> None:
        for n in range(5):
            client.accept(b"%d" % n)
            client.bounds()  # each in a batch of its own
        (found,) = client.pieces(Op.FETCH)
        times = [x.time or 0 for *_, x in found]
        assert times == sorted(times)
        for time in times:
            assert client.numbers(Op.AT, time) == (times.index(time) + 1,)
        assert (client.numbers(Op.AT, times[0] - 1), client.numbers(Op.AT, times[-1] + 1)) == ((1,), (6,))

    def test_what_was_trimmed_is_missing_and_another_stream_is_not_trimmed(self, client: QueryClient) -> None:
        for n in range(10):
            client.accept(b"%d" % n)
        assert client.bounds() == (1, 10)
        refused = client.ask(Op.TRIM, 5, text=b"another")
        assert refused.answer.code == StatusCode.FAILED
        assert client.bounds() == (1, 10)
        (first,), _ = parse_numbers(client.ask(Op.TRIM, 5, text=client.identity).answer.body, 1)
        assert first == 5
        assert client.bounds() == (5, 10)
        assert client.numbers(Op.MISSING, 0, 10) == (10, 1, 4)
        assert client.numbers(Op.MISSING, 4, 10) == (10,)
        assert [n for n, *_ in client.fetch(Op.FETCH)[0]] == [5, 6, 7, 8, 9, 10]

    def test_those_who_ask_hold_up_nothing(self, client: QueryClient) -> None:
        """Live readers get everything, once and in order, whatever is asked in between."""
        site, stream, r = client.site, client.stream, Ref("r")
        site.compile(stream, r, b"")
        got: list[bytes] = []
        for n in range(50):
            client.accept(b"%d" % n)
            stream.ask(Ref("reader"), LogQuery(Op.FETCH, n, stream.name, (0, _FAR, 10, 1000)))
            got += [delivery.subject for delivery in site.deliveries(stream)]
        assert got == [b"%d" % n for n in range(50)]

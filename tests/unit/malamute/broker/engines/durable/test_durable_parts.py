"""The pure parts of the durable engine: acknowledgements, ids, frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.malamute.broker.engines import ack_tracker
from mama_spark.malamute.broker.engines.ack_tracker import MOST_RUNS, AckTracker, OutcomeRuns
from mama_spark.malamute.broker.engines.log_queries import pack, pack_headers, unpack, unpack_headers
from mama_spark.malamute.protocol.extensions import AckRun, Extension, StoreOutcome, write

STORED, DUPLICATE, REFUSED = StoreOutcome.STORED, StoreOutcome.DUPLICATE, StoreOutcome.REFUSED


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_frames_come_back(content: list[bytes]) -> None:
    raw, lengths = pack(content)
    assert unpack(raw, lengths) == content
    assert (lengths is None) == (len(content) == 1)


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=5))
def test_headers_come_back(headers: list[tuple[bytes, bytes]]) -> None:
    assert unpack_headers(pack_headers(tuple(headers))) == tuple(headers)


def test_no_headers_take_no_room() -> None:
    assert pack_headers(()) is None


# --- outcomes of messages ------------------------------------------------------------------------------------------


def test_a_failed_transaction_corrects_what_was_written_down_for_it_and_nothing_else() -> None:
    book = AckTracker()
    for sequence in (1, 2, 3):
        book.add("a", STORED, sequence)
    early = book.take("a")
    book.settle()
    for sequence in (4, 5):
        book.add("b", STORED, sequence)
    book.add("c", DUPLICATE, 3)
    book.add("c", DUPLICATE, 4)
    asked = book.take("b")
    book.refuse(4)
    assert early.acks() == (AckRun(STORED, 3, 1),)
    assert asked.acks() == (AckRun(STORED, 1, 4), AckRun(REFUSED, 1))
    book.refuse(3)
    assert asked.acks() == (AckRun(REFUSED, 1), AckRun(REFUSED, 1))
    assert book.take("c").acks() == (AckRun(DUPLICATE, 1, 3), AckRun(REFUSED, 1))


@given(st.lists(st.tuples(st.sampled_from([STORED, DUPLICATE]), st.integers(1, 9)), max_size=40), st.integers(0, 9))
def test_refusing_keeps_the_count_and_the_order(sends: list[tuple[StoreOutcome, int]], above: int) -> None:
    runs = OutcomeRuns()
    for outcome, sequence in sends:
        runs.add(outcome, sequence)
    runs.refuse(above)
    found = [(run.outcome, run.first + i) for run in runs.acks() for i in range(run.count)]
    expected = [(outcome, s) if s <= above else (REFUSED, 0) for outcome, s in sends]
    assert [o for o, _ in found] == [o for o, _ in expected]
    assert [s for o, s in found if o is not REFUSED] == [s for o, s in expected if o is not REFUSED]


def test_an_answer_never_grows_beyond_its_field() -> None:
    """65,535 bytes; two publishers that alternate make a run of every message."""
    runs = OutcomeRuns()
    for sequence in range(1, 40_000, 2):
        runs.add(STORED, sequence)
    acks = runs.acks()
    assert len(acks) <= MOST_RUNS
    assert write(Extension(acks=acks))
    assert sum(run.count for run in acks) == 20_000
    assert {run.outcome for run in acks} == {STORED}
    assert acks[-1].last == 39_999, "what is not decided yet keeps its number"


def test_who_never_asks_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_tracker, "MOST_CLIENTS", 3)
    book = AckTracker()
    for client in range(10):
        book.add(client, STORED, client + 1)
    assert len(book) == 3
    assert book.take(9).acks() == (AckRun(STORED, 1, 10),)
    assert book.take(0).acks() == ()

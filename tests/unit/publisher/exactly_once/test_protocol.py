"""What an attempt does with the markers that it finds, for every state of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mama_spark.errors import ConfigError
from mama_spark.publisher.exactly_once import protocol as p
from mama_spark.publisher.exactly_once.claims import decode
from mama_spark.publisher.exactly_once.protocol import Attempt, BatchMarker, Step, TaskMarker

from tests.support.tables import each

ME = Attempt("query", 7, "r2", 3, "me", "query-7-", "one message a row")
BATCH = BatchMarker(7, ("r2",), "query-7-", "one message a row", "2026", 100)
TASK = TaskMarker(7, "r2", "me", 100)


@each(
    ("found", "step"),
    [
        (None, Step.NEW),
        (replace(BATCH, batch=6), Step.NEW),
        (replace(BATCH, batch=6, runs=("r1",), open=False), Step.NEW),
        (replace(BATCH, batch=8), Step.OLDER),
        (BATCH, Step.GO),
        (replace(BATCH, runs=("r1", "r2")), Step.GO),
        (replace(BATCH, runs=("r1", "r2"), open=False), Step.OPEN),
        (replace(BATCH, runs=("r1",)), Step.SEIZE),
        (replace(BATCH, runs=("r1",), open=False), Step.SEIZE),
        (replace(BATCH, runs=("r2", "r3")), Step.SUPERSEDED),
    ],
)
def test_the_batch_marker_decides(found: BatchMarker | None, step: Step) -> None:
    assert p.step_of_batch(ME, found) is step


@each(
    ("found", "step"),
    [
        (None, Step.NEW),
        (replace(TASK, batch=6), Step.NEW),
        (replace(TASK, run="r1"), Step.NEW),
        (TASK, Step.GO),
        (replace(TASK, owner="other"), Step.WAIT),
        (replace(TASK, owner="other", released=True), Step.TAKE),
    ],
)
def test_the_task_marker_decides(found: TaskMarker | None, step: Step) -> None:
    assert p.step_of_task(ME, found) is step


def test_a_run_passes_through_the_states_of_the_batch_marker() -> None:
    new = p.new_batch(replace(ME, run="r1"), "2026", 100)
    assert (new.after, new.until, new.open) == (100, None, True)
    seized = p.seized(ME, new)
    assert (seized.run, seized.after, seized.open) == ("r2", 100, False)
    assert p.step_of_batch(replace(ME, run="r1"), seized) is Step.SUPERSEDED
    assert p.opened(seized, 180) == replace(seized, open=True, until=180)


def test_an_attempt_passes_through_the_states_of_the_task_marker() -> None:
    first = p.new_task(ME, 100)
    assert p.released(p.renewed(first)) == replace(first, renewed=1, released=True)
    other = replace(ME, owner="other")
    assert p.taken(other, p.released(first)) == replace(first, owner="other")


def test_markers_survive_their_encoding() -> None:
    for batch in (BATCH, p.opened(p.seized(ME, BATCH), 5)):
        assert p.batch_marker(p.encode(batch)) == batch
    assert p.task_marker(p.encode(TASK)) == TASK
    assert p.batch_marker(b"") is None
    assert p.task_marker(b"") is None


@each("value", [b"x", b"[]", b"{}", b'{"batch": "x", "after": 1}'])
def test_what_is_no_marker_is_an_error_that_shows_it(value: bytes) -> None:
    for read in (p.batch_marker, p.task_marker):
        with pytest.raises(ConfigError, match="not a marker of mama-spark"):
            read(value)
    with pytest.raises(ConfigError, match="not a claim of mama-spark"):
        decode(value)


def test_keys_have_plain_tokens() -> None:
    assert ME.key("S", "task", 3) == "query.S.task.3"
    assert replace(ME, write="app 1.x/>").key("S", "batch").split(".")[1:] == ["S", "batch"]
    assert p.token("a.b") != p.token("a b")


def test_other_ids_or_packs_than_before_are_refused() -> None:
    p.check_same_write(ME, BATCH)
    with pytest.raises(ConfigError, match="Set option idPrefix as it was"):
        p.check_same_write(ME, replace(BATCH, prefix="other-7-"))
    with pytest.raises(ConfigError, match="was begun as pack=lines"):
        p.check_same_write(ME, replace(BATCH, form="pack=lines of values"))

"""Mappings of an account that move topics from the stream that their subjects name to another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.nats.jetstream import streams
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, Row

ACCOUNTS = """
accounts { HOME: {
  jetstream: enabled
  users: [ {user: free, password: p},
    {user: bound, password: p, permissions: {
      publish: ["there.>", "here.>", "$JS.API.>", "MAMA_BATCHES.>"], subscribe: ["_INBOX.>"]}} ]
  mappings: {
    "there.moved.*": "here.{{wildcard(1)}}"
    "there.split.*": [
      {destination: "here.{{wildcard(1)}}", weight: 50%}, {destination: "there.{{wildcard(1)}}", weight: 50%} ]
} } }
"""
MOVED: list[Row] = [(f"there.moved.{n % 2}", b"row %d" % n) for n in range(9)]
STAYS: list[Row] = [("there.stays", b"row %d" % n) for n in range(9)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), config=ACCOUNTS) as server:
        yield server


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(url_of(server, "free")) as admin:
        for name in ("THERE", "HERE"):  # in memory: on disk, one that is made again at once may have its old messages
            config = {"storage": "memory", "duplicate_window": WINDOW, "allow_batched": True}
            admin.create_stream(name, [f"{name.lower()}.>"], **config)
        yield admin
        for name in admin.api("STREAM.NAMES")["streams"] or ():
            admin.api(f"STREAM.DELETE.{name}")


def url_of(server: NatsServer, user: str) -> str:
    return server.url.replace("://", f"://{user}:p@")


def stored(admin: Admin) -> dict[str, list[bytes]]:
    return {name: sorted(m.payload for m in admin.messages(name)) for name in ("THERE", "HERE")}


@pytest.mark.parametrize("user", ["free", "bound"])
def test_a_batch_that_is_written_again_is_looked_for_where_its_topics_are_moved_to(
    server: NatsServer, admin: Admin, user: str
) -> None:
    once = Query(url_of(server, user), {"txnAppId": "job", "txnVersion": "1"}, batch=None)
    for known in (0, len(MOVED + STAYS)):
        report = once.attempt(MOVED + STAYS)
        assert (report.fatal, report.counts.acked, report.counts.duplicates) == (None, len(MOVED + STAYS), known)
        forget_ids(admin)
    assert stored(admin) == {"THERE": sorted(v for _, v in STAYS), "HERE": sorted(v for _, v in MOVED)}


def test_topics_that_lead_to_another_stream_than_the_named_one_are_refused_before_anything_is_stored(
    server: NatsServer, admin: Admin
) -> None:
    for mode in ("message", "batch", "none"):
        named = {"stream": "THERE", "ackMode": mode, "exactlyOnce": "false", "dedup": "false"}
        report = Query(url_of(server, "free"), named, batch=None).attempt(MOVED)
        assert report.fatal is not None
        assert "topic 'there.moved.0' belongs to stream 'HERE', not to 'THERE'" in report.fatal
    assert stored(admin) == {"THERE": [], "HERE": []}


SPLIT: list[Row] = [("there.split.a", b"row %d" % n) for n in range(64)]
ONCE = {"txnAppId": "job", "txnVersion": "1"}
PLAIN = {"exactlyOnce": "false", "dedup": "false"}


@pytest.mark.parametrize(
    ("user", "options"),
    [
        ("free", ONCE),
        ("bound", ONCE),
        ("free", {**PLAIN, "ackMode": "batch"}),
        ("free", {"exactlyOnce": "false", "order": "partition"}),
    ],
    ids=str,
)
def test_topics_that_are_mapped_by_weights_are_refused_before_anything_is_stored(
    server: NatsServer, admin: Admin, user: str, options: dict[str, str]
) -> None:
    for rows in (SPLIT, [*SPLIT, ("there.x", b"x"), ("here.y", b"y")]):
        report = Query(url_of(server, user), options, batch=None).attempt(rows)
        assert "topic 'there.split.a' leads to the streams 'HERE' and 'THERE'" in (report.fatal or "")
    assert stored(admin) == {"THERE": [], "HERE": []}


def test_fast_ingest_is_not_chosen_for_topics_that_are_mapped_by_weights(server: NatsServer, admin: Admin) -> None:
    report = Query(url_of(server, "free"), PLAIN, batch=None).attempt(SPLIT)
    assert (report.fatal, report.counts.acked) == (None, len(SPLIT))
    assert sorted(v for values in stored(admin).values() for v in values) == sorted(v for _, v in SPLIT)


BOTH: list[Row] = [("there.x", b"x"), ("here.y", b"y")]


@pytest.mark.parametrize(
    ("rows", "options", "known"),
    [
        (SPLIT, ONCE, True),
        (SPLIT + BOTH, ONCE, True),
        (SPLIT, ONCE, False),
        (SPLIT, {**PLAIN, "ackMode": "message", "stream": "THERE"}, False),
    ],
    ids=["mapped", "mapped, beside topics of both streams", "mapped since", "mapped since, stream named"],
)
def test_a_write_ends_when_another_stream_stores_than_the_one_that_is_wanted(
    server: NatsServer,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[Row],
    options: dict[str, str],
    known: bool,
) -> None:
    def nothing(*_: object) -> tuple[list[str], list[str]]:
        return [], []

    monkeypatch.setattr(streams, "_QUESTIONS", 0)  # a weight that is too small to be seen by asking
    if not known:
        monkeypatch.setattr(streams, "led_away", nothing)
    report = Query(url_of(server, "free"), options, batch=None).attempt(rows)
    assert "has stored rows of topics that belong to" in (report.fatal or "")


def test_fast_batches_hold_the_topics_of_the_stream_that_stores_them(server: NatsServer, admin: Admin) -> None:
    mixed = [row for pair in zip(MOVED, STAYS, strict=True) for row in pair]
    for options in ({"dedup": "false"}, {"ackMode": "batch"}, {"order": "partition"}):
        before = stored(admin)
        fast = {"exactlyOnce": "false", "retryDeadline": "2s", **options}
        report = Query(url_of(server, "free"), fast, batch=None).attempt(mixed)
        assert (report.fatal, report.counts.acked) == (None, len(mixed))
        new = {name: len(kept) - len(before[name]) for name, kept in stored(admin).items()}
        assert new == {"THERE": len(STAYS), "HERE": len(MOVED)}


def test_subscribers_see_nothing_of_the_question_whether_a_stream_takes_a_topic(
    server: NatsServer, admin: Admin
) -> None:
    with admin.hearing("nowhere.>") as heard:
        for options in ({"exactlyOnce": "false"}, {"exactlyOnce": "false", "stream": "HERE"}, ONCE):
            report = Query(url_of(server, "free"), options, batch=None).attempt([("nowhere.a", b"x"), BOTH[1]])
            assert (report.fatal, report.counts.acked) == (None, 1)
            assert "no stream takes topic 'nowhere.a'" in str(report.counts.first_failures)
    assert not heard

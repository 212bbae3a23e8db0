"""Streams that store what is published to other topics, or get it from others: published, read and written again, with
what the server holds as the oracle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.errors import ConfigError, OptionError
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, Row

ACCOUNTS = """
accounts {
  HOME: { jetstream: enabled, users: [{user: home, password: p}], exports: [{service: "imported.>"}],
    mappings: { "alias.*": "mapped.{{wildcard(1)}}", "within.a": "within.b" } }
  GUEST: { jetstream: enabled, users: [{user: guest, password: p}],
    imports: [{service: {account: HOME, subject: "imported.>"}, to: "theirs.>"}] }
}
"""
#: Nanoseconds, the shortest that a server takes.
WINDOW = 100_000_000
PACKS = [{}, {"pack": "lines"}, {"pack": "arrow", "packCompression": "zstd"}]
ROWS: list[Row] = [(f"{n % 3}", b"row %d" % n) for n in range(9)]


@dataclass(frozen=True)
class Case:
    """:ivar published, stored: prefix of the topics that rows are published to, and of those that the stream has"""

    name: str
    published: str
    stored: str
    config: dict[str, Any] = field(default_factory=dict)
    user: str = "home"


TRANSFORM = {"src": "taken.>", "dest": "kept.>"}
CASES = [
    Case("PLAIN", "plain", "plain", {"subjects": ["plain.>"]}),
    Case("TRANSFORMED", "taken", "kept", {"subjects": ["taken.>"], "subject_transform": TRANSFORM}),
    Case("MAPPED", "alias", "mapped", {"subjects": ["mapped.>"]}),
    Case("REPUBLISHED", "told", "told", {"subjects": ["told.>"], "republish": {"src": "told.>", "dest": "again.>"}}),
    Case("IMPORTED", "theirs", "imported", {"subjects": ["imported.>"]}, user="guest"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), config=ACCOUNTS) as server:
        yield server


def url_of(server: NatsServer, user: str = "home") -> str:
    return server.url.replace("://", f"://{user}:p@")


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(url_of(server)) as admin:
        yield admin
        for name in admin.api("STREAM.NAMES")["streams"] or ():
            admin.api(f"STREAM.DELETE.{name}")


def make(admin: Admin, case: Case) -> None:
    admin.create_stream(case.name, allow_batched=True, duplicate_window=WINDOW, **case.config)


def query(server: NatsServer, case: Case, **options: str) -> Query:
    return Query(url_of(server, case.user), {"topicPrefix": case.published, **options}, batch=None)


def read(server: NatsServer, options: dict[str, str], *, batch: bool = False) -> list[Row]:
    source = MamaSubDataSource({"url": url_of(server), **options})
    if batch:
        whole = source.reader(SCHEMA)
        tasks: Any = whole.partitions()
        read_task: Any = whole.read
    else:
        stream = source.streamReader(SCHEMA)
        start = stream.initialOffset()
        tasks, read_task = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable())), stream.read
    columns = [(some["topic"].to_pylist(), some["value"].to_pylist()) for task in tasks for some in read_task(task)]
    return [row for topics, values in columns for row in zip(topics, values, strict=True)]


def stored_up_to(admin: Admin, name: str, last: int) -> None:
    eventually(lambda: admin.info(name)["state"]["last_seq"] == last, f"{name} has sequence {last}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_are_stored_and_read_whatever_they_are_stored_under(server: NatsServer, admin: Admin, case: Case) -> None:
    make(admin, case)
    wanted = [(f"{case.stored}.{topic}", value) for topic, value in ROWS]
    for mode in ("auto", "message", "batch", "none"):
        for named in [{}, {"stream": case.name}] if case.user == "home" else [{}]:
            before = admin.info(case.name)["state"]["last_seq"]
            report = query(server, case, exactlyOnce="false", ackMode=mode, dedup="false", **named).attempt(ROWS)
            assert report.fatal is None
            assert report.counts.acked + report.counts.published == len(ROWS)
            stored_up_to(admin, case.name, before + len(ROWS))
    stored = [(message.topic, message.payload) for message in admin.messages(case.name)]
    assert sorted(stored) == sorted(wanted * (len(stored) // len(wanted)))
    for options in ({"topics": f"{case.stored}.>"}, {"stream": case.name, "topics": f"{case.stored}.*"}):
        assert read(server, options) == read(server, options, batch=True) == stored


@pytest.mark.parametrize("pack", PACKS, ids=["off", "lines", "arrow"])
@pytest.mark.parametrize("case", [case for case in CASES if case.user == "home"], ids=lambda case: case.name)
def test_a_batch_that_is_written_again_is_stored_once(
    server: NatsServer, admin: Admin, case: Case, pack: dict[str, str]
) -> None:
    make(admin, case)
    once = query(server, case, txnAppId="job", txnVersion="1", **pack)
    assert once.attempt(ROWS[:6]).counts.acked == 6
    before = admin.info(case.name)["state"]["messages"]
    time.sleep(2 * WINDOW / 1e9)
    again = once.attempt(ROWS[:6])
    assert (again.fatal, again.counts.acked, again.counts.duplicates) == (None, 6, 6)
    assert admin.info(case.name)["state"]["messages"] == before


def test_a_topic_that_is_mapped_to_another_of_its_stream_is_stored_once(server: NatsServer, admin: Admin) -> None:
    make(admin, case := Case("WITHIN", "within", "within", {"subjects": ["within.>"]}))
    once = query(server, case, txnAppId="job", txnVersion="1")
    for _ in range(2):
        once.attempt([("a", b"moved")])
        time.sleep(2 * WINDOW / 1e9)
    assert [message.topic for message in admin.messages("WITHIN")] == ["within.b"]


def test_streams_that_get_their_messages_from_others_are_read_by_topic_when_they_are_named(
    server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    make(admin, case := CASES[0])
    query(server, case, exactlyOnce="false").attempt(ROWS)
    origin = {"name": case.name}
    renamed = {**origin, "subject_transforms": [{"src": "plain.>", "dest": "p.>"}]}
    admin.create_stream("MIRROR", [], mirror=origin)
    admin.create_stream("SOURCED", [], sources=[origin])
    admin.create_stream("BOTH", ["own.>"], sources=[renamed])
    prefixes = {"MIRROR": "plain", "SOURCED": "plain", "BOTH": "p"}
    for name, prefix in prefixes.items():
        stored_up_to(admin, name, len(ROWS))
        wanted = sorted((f"{prefix}.1", value) for topic, value in ROWS if topic == "1")
        assert sorted(read(server, {"stream": name, "topics": f"{prefix}.1"})) == wanted
    assert read(server, {"stream": "MIRROR", "topics": "typo.>"}) == []
    assert "stream 'MIRROR', which gets its messages from other streams, holds none on 'typo.>' now" in caplog.text
    assert len(read(server, {"topics": "plain.>"})) == len(ROWS), "mirrors are not read beside their origin"
    with pytest.raises(ConfigError, match=r"read by name \(option stream\): BOTH, MIRROR, SOURCED"):
        read(server, {"topics": "p.>"})


def test_what_a_stream_never_stores_is_said(server: NatsServer, admin: Admin) -> None:
    make(admin, CASES[1])
    for named in [{}, {"stream": "TRANSFORMED"}]:
        with pytest.raises(ConfigError, match=r"takes taken\.> and stores taken\.> as kept\.> \(subject_transform\)"):
            read(server, {"topics": "taken.>", **named})
    report = query(server, Case("NONE", "nobody", ""), exactlyOnce="false").attempt(ROWS)
    assert "no stream takes topic 'nobody.0'" in (report.fatal or "")


def test_what_a_stream_took_before_its_subjects_were_changed_is_read(server: NatsServer, admin: Admin) -> None:
    make(admin, case := CASES[0])
    query(server, case, exactlyOnce="false").attempt(ROWS)
    admin.update_stream(case.name, subjects=["newer.>"])
    assert len(read(server, {"stream": case.name, "topics": "plain.>"})) == len(ROWS)


def test_tasks_are_no_more_than_a_stream_takes_consumers(server: NatsServer, admin: Admin) -> None:
    """Consumers of tasks that have ended count as long as the server has them, and are waited for."""

    def consumer(name: str, **more: Any) -> None:
        config = {"name": name, "ack_policy": "explicit", **more}
        admin.api(f"CONSUMER.CREATE.FEW.{name}", {"stream_name": "FEW", "config": config})

    def plan(**options: str) -> list[Any]:
        given = {"url": url_of(server), "stream": "FEW", **options}
        return list(MamaSubDataSource(given).reader(SCHEMA).partitions())

    make(admin, case := Case("FEW", "few", "few", {"subjects": ["few.>"], "max_consumers": 3}))
    query(server, case, exactlyOnce="false").attempt(ROWS)
    consumer("theirs", durable_name="theirs")
    says = r"option minPartitions=3: stream 'FEW' takes 3 consumers \(max_consumers\), and has theirs, so 2 tasks"
    with pytest.raises(OptionError, match=says):
        plan(minPartitions="3")
    for n in range(2):
        consumer(f"mama-{n}", inactive_threshold=WINDOW)
    assert len(plan(minPartitions="2")) == 2
    assert len(read(server, {"stream": "FEW", "minPartitions": "2"})) == len(ROWS)
    for n in range(2):
        consumer(f"mama-{n}", inactive_threshold=3600 * 10**9)
    with pytest.raises(ConfigError, match=r"stream 'FEW', or its account, .* for 0.2 s .*: read with fewer tasks"):
        read(server, {"stream": "FEW", "waitTimeout": "200ms"})

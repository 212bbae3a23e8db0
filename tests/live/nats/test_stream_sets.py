"""Stream sets: topics are spread over streams side by side, read as one source, and may grow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from mama_spark.nats import NatsSettings
from mama_spark.nats.preflight import check_server
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SinkOptions
from mama_spark.spark.subscribe import data_source

from tests.support.nats.mamasub import StreamQuery
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, Row

#: How other programs reach the same members: a mapping of the account.
MAPPING = 'mappings = { "orders.>": "stream-set.orders.{{partition(4)}}.orders.>" }\n'
TOPICS = 40
EIGHT = "orders-{0..7}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), config=MAPPING) as found:
        yield found


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(server.url) as found:
        yield found
        for name in found.api("STREAM.NAMES").get("streams") or []:
            found.api(f"STREAM.DELETE.{name}")


def rows(first: int, last: int) -> list[Row]:
    return [(f"orders.r{n % TOPICS}", b"order %d" % n) for n in range(first, last)]


def query(server: NatsServer, streams: str = "orders-{0..3}", **more: str) -> Query:
    given = {"streams": streams, "createStream": "true", "exactlyOnce": "false", **more}
    return Query(server.url, given)


def stored(admin: Admin, count: int = 4) -> dict[str, list[Row]]:
    """The rows of each member."""
    return {
        f"orders-{number}": [(m.topic, m.payload) for m in admin.messages(f"orders-{number}")]
        for number in range(count)
    }


def require_order(found: list[Row]) -> None:
    """In the order of their numbers, within each topic."""
    of_topic: dict[str, list[int]] = defaultdict(list)
    for topic, payload in found:
        of_topic[topic].append(int(payload.split()[1]))
    assert all(numbers == sorted(numbers) for numbers in of_topic.values())


@pytest.mark.parametrize(
    "more", [{}, {"dedup": "false", "ackMode": "batch"}, {"order": "partition"}], ids=["messages", "batches", "order"]
)
def test_a_write_makes_the_set_and_each_topic_is_in_one_member(
    server: NatsServer, admin: Admin, more: dict[str, str]
) -> None:
    # a message without an id that is sent again, because its acknowledgement took longer, is stored twice
    patient = {"waitTimeout": "60s", "retryDeadline": "120s"}
    report = query(server, **patient, **more).attempt(rows(0, 400))
    assert (report.counts.acked, report.counts.failed) == (400, 0), report.counts.sentence()
    found = stored(admin)
    assert Counter(row for member in found.values() for row in member) == Counter(rows(0, 400))
    members = [{topic for topic, _ in member} for member in found.values()]
    assert sum(map(len, members)) == TOPICS
    assert all(members)
    for member in found.values():
        require_order(member)


def test_other_programs_come_to_the_same_members_by_the_mapping_of_the_account(
    server: NatsServer, admin: Admin
) -> None:
    query(server).attempt(rows(0, TOPICS))

    async def publish() -> None:
        for topic, payload in rows(TOPICS, 2 * TOPICS):
            await admin._client.request(topic, payload)

    admin._run(publish())
    for member in stored(admin).values():
        assert all(count == 2 for count in Counter(topic for topic, _ in member).values())


def test_a_repeated_batch_stores_nothing_twice(server: NatsServer, admin: Admin) -> None:
    one = query(server, exactlyOnce="true", pack="lines", packMaxRows="7")
    one.attempt(rows(0, 300))
    again = one.attempt(rows(0, 500)[::-1], run="again")
    assert (again.counts.acked, again.counts.duplicates) == (500, 300)
    values = [value for member in stored(admin).values() for _, payload in member for value in payload.split(b"\n")]
    assert sorted(values) == sorted(payload for _, payload in rows(0, 500))


def batch(query: StreamQuery) -> list[Row]:
    return [(row["topic"], row["value"]) for row in query.batch()]


@pytest.fixture
def _new_streams_are_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source, "STREAM_LOOKUP_INTERVAL", 0.0)


@pytest.mark.usefixtures("_new_streams_are_seen_at_once")
def test_a_set_that_grows_loses_and_doubles_nothing_and_keeps_the_order_of_each_topic(
    server: NatsServer, admin: Admin
) -> None:
    """As the page says: writers end with a whole batch, readers come to the end, one write lets the set grow."""
    old, new = query(server), query(server, EIGHT)
    old.attempt(rows(0, 500))
    whole = StreamQuery(server.url, streams="orders-*", waitTimeout="10s")
    part = StreamQuery(server.url, streams=EIGHT, topics="orders.r1,orders.r2", waitTimeout="10s")
    found, chosen = batch(whole), batch(part)
    refused = new.attempt(rows(500, 1_000))
    assert "growStreams=true" in str(refused.fatal)
    grown = query(server, EIGHT, growStreams="true").attempt(rows(500, 1_000))
    assert grown.counts.acked == 500, grown.fatal
    assert new.attempt(rows(1_000, 1_500)).counts.acked == 500
    assert "orders-{0..7}" in str(old.attempt(rows(0, 1)).fatal)
    found += batch(whole)
    chosen += batch(part)
    assert Counter(found) == Counter(rows(0, 1_500))
    require_order(found)
    assert Counter(chosen) == Counter(row for row in rows(0, 1_500) if row[0] in ("orders.r1", "orders.r2"))
    assert sorted(whole.offset) == [f"orders-{number}" for number in range(8)]
    assert all({"next", "identity"} <= position.keys() for position in whole.offset.values())
    assert all(stored(admin, 8).values())


def test_a_stream_that_is_no_member_is_refused(server: NatsServer, admin: Admin) -> None:
    admin.create_stream("orders-2", ["others.>"])
    assert "is no member of the set" in str(query(server).attempt(rows(0, 1)).fatal)
    assert "createStream=true makes what is missing" in str(
        query(server, "a{0..1}", createStream="false").attempt(rows(0, 1)).fatal
    )


def test_check_shows_how_the_load_is_spread(server: NatsServer, admin: Admin) -> None:
    given = {"url": server.url, "streams": "orders-{0..3}", "createStream": "true"}
    found = check_server(NatsSettings.from_options(SinkOptions.parse(given)))
    assert (True, "streams: orders-{0..3}: 0 of 4 streams are there") in found
    query(server).attempt(rows(0, 1_000))
    lines = [text for fine, text in check_server(NatsSettings.from_options(SinkOptions.parse(given))) if fine]
    (head,) = [line for line in lines if line.startswith("streams: orders-{0..3}: ")]
    assert "4 of 4 streams are there, 1,000 messages; the fullest has 1." in head
    assert sum(line.startswith("streams: orders-") and "messages (" in line for line in lines) == 4
    larger = {**given, "streams": EIGHT}
    assert not check_server(NatsSettings.from_options(SinkOptions.parse(larger)))[-1][0]
    grows = check_server(NatsSettings.from_options(SinkOptions.parse({**larger, "growStreams": "true"})))
    assert all(fine for fine, _ in grows)

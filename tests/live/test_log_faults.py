"""Reading a stream while things go wrong: the same records, none twice, in order; or an error that says what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mama_spark.bridges.nats import NatsBridge, NatsSettings
from mama_spark.bridges.nats.connection.pool import POOL
from mama_spark.bridges.nats.protocol.records import DeliveryBuffer, DeliveryParser
from mama_spark.bridges.nats.read import stream_log as module
from mama_spark.bridges.nats.read.logs import NatsLog, NatsLogs
from mama_spark.bridges.nats.server.nats_server import Cluster, NatsServer
from mama_spark.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.message import MessageBatch
from mama_spark.testing.bridge_suite import publish
from mama_spark.testing.log_suite import LoggedRecord, everything, numbers, rows
from mama_spark.testing.waiting import eventually

from tests.support.nats import account
from tests.support.nats_accounts import Accounts
from tests.support.nats_servers import Admin
from tests.support.plain_nats_connection import PlainNatsConnection
from tests.support.proxy import Proxy

BOTH = pytest.mark.parametrize("fast", [None, False], ids=["fast", "public calls"])
#: More than a reader fetches ahead, so that the server still has some when the first batch is there.
MANY, SIZE = 14_000, 1000

_names = (f"S{i}" for i in count())


@pytest.fixture(scope="module")
def shared(nats_accounts: Accounts) -> Iterator[NatsServer]:
    """A server for tests that leave it running."""
    with account(nats_accounts, config="max_payload: 9MB") as server:
        yield server


@pytest.fixture(scope="module")
def admin(shared: NatsServer) -> Iterator[Admin]:
    with Admin(shared.url) as admin:
        yield admin


@pytest.fixture
def name(admin: Admin) -> Iterator[str]:
    """An empty stream of this test's own, which takes what lies below its name."""
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"])
    yield name
    admin.api(f"STREAM.DELETE.{name}")


@pytest.fixture(scope="module")
def full(shared: NatsServer, admin: Admin) -> str:
    """A stream with :data:`MANY` records, only to be read."""
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"])
    fill(shared.url, name)
    return name


def fill(url: str, name: str, n: int = MANY, size: int = SIZE, topics: int = 2) -> None:
    """``n`` records, each different."""
    bridge = NatsBridge(NatsSettings(tuple(url.split(",")), stream=name, dedup=False))
    bridge.open()
    pad = b"." * size
    publish(
        bridge,
        MessageBatch.of([f"{name}.{i % topics}" for i in range(n)], [(b"%d" % i + pad)[:size] for i in range(n)]),
    )
    bridge.close()


@contextmanager
def reading(url: str, fast: bool | None = None, timeout: float = 60.0, **settings: Any) -> Iterator[NatsLogs]:
    logs = NatsLogs(NatsSettings(tuple(url.split(",")), fast=fast, **settings), timeout)
    logs.open()
    try:
        yield logs
    finally:
        logs.close()


def consumers(admin: Admin, name: str) -> list[str]:
    return list(admin.api(f"CONSUMER.NAMES.{name}").get("consumers") or [])


def held_to(found: list[LoggedRecord], n: int = MANY) -> None:
    assert [r.sequence for r in found] == list(range(1, n + 1))
    assert [int(r.payload.partition(b".")[0]) for r in found] == list(range(n))


# --- the server, and the way to it ---------------------------------------------------------------------------


@pytest.mark.own_server
@BOTH
@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_server_that_restarts_costs_nothing(nats_server: NatsServer, fast: bool | None, way: str) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["S.>"])
        fill(nats_server.url, "S")
        with reading(nats_server.url, fast) as logs:
            batches = logs.log("S").read(0, MANY)
            found = list(rows(next(batches)))
            nats_server.kill() if way == "kill" else nats_server.shutdown()
            nats_server.restart()
            held_to(found + everything(batches))


@BOTH
def test_a_connection_that_is_cut_costs_nothing(shared: NatsServer, full: str, fast: bool | None) -> None:
    with Proxy(shared.url) as proxy, reading(proxy.url, fast) as logs:
        found: list[LoggedRecord] = []
        for i, batch in enumerate(logs.log(full).read(0, MANY)):
            found += rows(batch)
            if i in (0, 3):
                proxy.cut()
        held_to(found)
        POOL.clear()


@BOTH
def test_nobody_answers_for_longer_than_the_time_limit(shared: NatsServer, full: str, fast: bool | None) -> None:
    with Proxy(shared.url) as proxy:
        with reading(proxy.url, fast) as logs:
            log = logs.log(full)
            batches = log.read(0, MANY)
            next(batches)
            patience, logs.api.timeout = logs.api.timeout, 1.0
            proxy.silence()
            with pytest.raises(Unavailable):
                list(batches)
            with pytest.raises(Unavailable):
                log.bounds()
            proxy.speak()
            logs.api.timeout = patience
            held_to(everything(log.read(0, MANY)))
        POOL.clear()


def test_a_server_without_jetstream_is_told_at_once(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "n", jetstream=None) as server:
        logs = NatsLogs(NatsSettings((server.url,)))
        with pytest.raises(ConfigError, match="JetStream is not enabled"):
            logs.open()
        logs.close()


def test_a_replicated_stream_whose_leader_goes_is_read_on(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster, Admin(cluster.url) as admin:
        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        config = {"name": "S", "subjects": ["S.>"], "num_replicas": 3, "storage": "file"}
        eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
        fill(cluster.url, "S")
        with reading(cluster.url) as logs:
            log = logs.log("S")
            batches = log.read(0, MANY)
            found = list(rows(next(batches)))
            assert admin.api("STREAM.LEADER.STEPDOWN.S").get("success")
            found += rows(next(batches))

            def leads() -> str | None:
                """Leader of our consumer, which may be another one at any moment."""
                mine = (c for c in consumers(admin, "S") if c.startswith("mama-"))
                infos = (admin.api(f"CONSUMER.INFO.S.{consumer}") for consumer in mine)
                return next((i["cluster"]["leader"] for i in infos if i.get("cluster", {}).get("leader")), None)

            cluster.node(eventually(leads, "a leader of the consumer")).kill()
            held_to(found + everything(batches))
            held_to(everything(log.read(0, MANY)))


# --- consumers -----------------------------------------------------------------------------------------------


@BOTH
def test_a_consumer_that_an_operator_deletes_costs_nothing(
    shared: NatsServer, admin: Admin, full: str, fast: bool | None
) -> None:
    with reading(shared.url, fast) as logs:
        found: list[LoggedRecord] = []
        for batch in logs.log(full).read(0, MANY):
            found += rows(batch)
            for consumer in consumers(admin, full):
                assert consumer.startswith("mama-"), "so that discovery knows it"
                admin.api(f"CONSUMER.DELETE.{full}.{consumer}")
        held_to(found)


@BOTH
def test_deliveries_that_are_lost_are_fetched_again(
    shared: NatsServer, full: str, fast: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_buffer, turns = DeliveryParser.take_buffer, count()

    def lossy(parser: DeliveryParser) -> DeliveryBuffer:
        buffer = take_buffer(parser)
        turn = next(turns)
        if len(buffer) > 10 and turn < 4:
            for column in (buffer.subjects, buffer.tails, buffer.payloads):
                if turn % 2:
                    del column[4:6]  # in the middle
                else:
                    del column[:3]
        return buffer

    monkeypatch.setattr(DeliveryParser, "take_buffer", lossy)
    with reading(shared.url, fast) as logs:
        held_to(everything(logs.log(full).read(0, 9000)), 9000)
    assert next(turns) > 4


def test_what_is_given_up_leaves_no_consumer_behind(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        next(batches)
        assert len(consumers(admin, name)) == 1
        del batches
        held_to(everything(log.read(0, MANY)))
        log.at(0)
        eventually(lambda: not consumers(admin, name), "all consumers are deleted")
        kept = log.read(0, MANY)
        next(kept)
        config = admin.api(f"CONSUMER.INFO.{name}.{consumers(admin, name)[0]}")["config"]
        assert 0 < config["inactive_threshold"] <= 60e9, "a reader that died is cleaned up by the server"
        assert config["mem_storage"]


def test_a_reader_that_stands_still_has_a_few_megabytes_fetched(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 2 * MANY)
    with reading(shared.url) as logs:
        batches = logs.log(name).read(0, 2 * MANY)
        found = list(rows(next(batches)))

        def at_rest() -> dict[str, Any] | None:
            info = admin.api(f"CONSUMER.INFO.{name}.{consumers(admin, name)[0]}")
            return info if not info["num_waiting"] else None

        info = eventually(at_rest, "no request is open any more")
        assert (info["delivered"]["consumer_seq"] - len(found)) * SIZE < 8 * 2**20
        held_to(found + everything(batches), 2 * MANY)


def test_closing_the_bridge_ends_what_is_read(shared: NatsServer, full: str) -> None:
    with reading(shared.url) as logs:
        batches = logs.log(full).read(0, MANY)
        next(batches)
    with pytest.raises((ClientClosed, Unavailable)):
        list(batches)
    with pytest.raises(ClientClosed):
        logs.names([])


# --- the stream ----------------------------------------------------------------------------------------------


@BOTH
def test_what_is_deleted_while_it_is_read_is_left_out(
    shared: NatsServer, admin: Admin, name: str, fast: bool | None
) -> None:
    fill(shared.url, name)
    with reading(shared.url, fast) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        found = list(rows(next(batches)))
        gone = [MANY - 5, MANY - 1, MANY]
        for sequence in gone:
            admin.api(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        found += everything(batches)
        assert [r.sequence for r in found] == [n for n in range(1, MANY + 1) if n not in gone]
        assert log.missing(0, MANY) == [(MANY - 5, MANY - 5), (MANY - 1, MANY)]


@BOTH
def test_a_purge_while_it_is_read_ends_the_range(
    shared: NatsServer, admin: Admin, name: str, fast: bool | None
) -> None:
    fill(shared.url, name)
    with reading(shared.url, fast) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        found = list(rows(next(batches)))
        admin.api(f"STREAM.PURGE.{name}")
        found += everything(batches)
        assert [r.sequence for r in found] == list(range(1, len(found) + 1))
        assert len(found) < MANY
        assert log.missing(0, MANY) == [(1, MANY)]
        assert (log.bounds().first, log.bounds().last) == (MANY + 1, MANY)


@BOTH
def test_a_stream_that_is_deleted_while_it_is_read_is_named(
    shared: NatsServer, admin: Admin, name: str, fast: bool | None
) -> None:
    fill(shared.url, name)
    with reading(shared.url, fast) as logs:
        log = logs.log(name)
        batches = log.read(0, MANY)
        next(batches)
        admin.api(f"STREAM.DELETE.{name}")
        with pytest.raises(ConfigError, match=f"there is no stream '{name}'"):
            list(batches)
        for call in (log.bounds, lambda: log.at(0), lambda: log.trim(5), lambda: log.missing(0, 5)):
            with pytest.raises(ConfigError, match=name):
                call()
        with pytest.raises(ConfigError, match=name):
            list(log.read(0, 5))


def test_a_stream_that_is_made_again_is_another_one(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name)
    with reading(shared.url) as logs:
        log = logs.log(name)
        before = log.bounds().identity
        batches = log.read(0, MANY)
        next(batches)
        admin.api(f"STREAM.DELETE.{name}")
        admin.create_stream(name, [f"{name}.>"])
        with pytest.raises(ConfigError, match="deleted and made again"):
            list(batches)
        assert log.bounds().identity != before


def test_more_holes_than_the_server_lists_are_found_by_looking(
    shared: NatsServer, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shared.url, name, 300, topics=3)
    admin.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.1"})
    admin.api(f"STREAM.PURGE.{name}", {"seq": 20})
    with reading(shared.url) as logs:
        log = logs.log(name)
        listed = [log.missing(low, high) for low, high in ((0, 300), (0, 400), (25, 26), (30, 31), (50, 90))]
        assert listed[0][0] == (1, 20)
        assert listed[0][-1] == (299, 299)
        monkeypatch.setattr(module, "MOST_LISTED", 3)
        assert [log.missing(low, high) for low, high in ((0, 300), (0, 400), (25, 26), (30, 31), (50, 90))] == listed


def test_a_work_queue_is_refused_and_keeps_its_records(shared: NatsServer, admin: Admin) -> None:
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"], retention="workqueue")
    fill(shared.url, name, 10)
    with reading(shared.url) as logs:
        log = logs.log(name)
        with pytest.raises(ConfigError, match="work queue"):
            list(log.read(0, 10))
        with pytest.raises(ConfigError, match="work queue"):
            log.at(0)
        log.progress("telemetry", 10)
        assert consumers(admin, name) == []
        assert any("work queue" in text for text in log.warnings())
    assert admin.info(name)["state"]["messages"] == 10


def test_reading_an_interest_stream_takes_nothing_from_its_consumers(shared: NatsServer, admin: Admin) -> None:
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"], retention="interest")
    theirs = {"stream_name": name, "config": {"durable_name": "theirs", "ack_policy": "explicit"}}
    admin.api(f"CONSUMER.CREATE.{name}.theirs", theirs)
    fill(shared.url, name, 10)
    with reading(shared.url) as logs:
        log = logs.log(name)
        assert numbers(log.read(0, 10)) == list(range(1, 11))
        assert numbers(log.read(0, 10)) == list(range(1, 11))
        eventually(lambda: consumers(admin, name) == ["theirs"], "only theirs is left")
        assert any("interest" in text for text in logs.warnings([f"{name}.>"]))
    assert admin.info(name)["state"]["messages"] == 10
    assert admin.api(f"CONSUMER.INFO.{name}.theirs")["num_pending"] == 10


def test_a_stream_that_keeps_idle_consumers_for_a_short_time_only_is_read(shared: NatsServer, admin: Admin) -> None:
    name = next(_names)
    admin.create_stream(name, [f"{name}.>"], consumer_limits={"inactive_threshold": 2 * 10**9})
    fill(shared.url, name, 10)
    with reading(shared.url) as logs:
        assert numbers(logs.log(name).read(0, 10)) == list(range(1, 11))
        assert logs.log(name).at(0) == 1


def test_topics_of_a_mirror_are_filtered_though_it_has_no_subjects(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 20)
    mirror = next(_names)
    admin.create_stream(mirror, [], mirror={"name": name})
    eventually(lambda: admin.info(mirror)["state"]["last_seq"] == 20, "it has caught up")
    with reading(shared.url) as logs:
        assert numbers(logs.log(mirror).read(0, 20, [f"{name}.1"])) == list(range(2, 21, 2))
        assert logs.names([f"{name}.1"]) == [name]


def test_topics_lie_in_several_streams_or_in_none(shared: NatsServer, admin: Admin) -> None:
    one, two = next(_names), next(_names)
    admin.create_stream(one, ["several.a.>"])
    admin.create_stream(two, ["several.b.x", "several.deep.*.>"])
    fill(shared.url, one, 0)
    with reading(shared.url) as logs:
        assert logs.names(["several.>"]) == sorted([one, two])
        assert logs.names(["several.deep.>"]) == [two]
        assert logs.names(["several.a.b", "several.b.x"]) == sorted([one, two])
        assert {one, two} <= set(logs.names([]))
        for topic in ("several.b.y", "nothing.>", "several"):
            with pytest.raises(ConfigError, match=topic):
                logs.names(["several.a.b", topic])
        assert numbers(logs.log(one).read(0, 5, ["several.b.x"])) == [], "no topic of this stream"


# --- what is in it -------------------------------------------------------------------------------------------


@BOTH
def test_records_larger_than_a_request_come(shared: NatsServer, admin: Admin, name: str, fast: bool | None) -> None:
    fill(shared.url, name, 5, 100)
    fill(shared.url, name, 2, 8 * 2**20)
    fill(shared.url, name, 5, 100)
    fill(shared.url, name, 1, 8 * 2**20)
    with reading(shared.url, fast) as logs:
        found = everything(logs.log(name).read(0, 13))
    assert [len(r.payload) for r in found] == [100] * 5 + [8 * 2**20] * 2 + [100] * 5 + [8 * 2**20]
    assert found[6].payload == (b"1" + b"." * 8 * 2**20)[: 8 * 2**20]


def test_each_record_may_have_its_own_topic(shared: NatsServer, name: str) -> None:
    fill(shared.url, name, 20_000, 10, topics=20_000)
    with reading(shared.url) as logs:
        found = everything(logs.log(name).read(0, 20_000))
        assert [r.topic for r in found] == [f"{name}.{i}" for i in range(20_000)]
        assert numbers(logs.log(name).read(0, 20_000, [f"{name}.{i}" for i in (5, 19_999, 7)])) == [6, 8, 20_000]


@BOTH
def test_headers_and_subjects_that_are_no_text_do_not_stop_a_reader(
    shared: NatsServer, admin: Admin, name: str, fast: bool | None
) -> None:
    blocks = [
        b"NATS/1.0\r\nA: \xff\xfe\r\nA: 2\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\nB:  x \r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ]
    subjects = [b"o", b"o.\xc3\xa9", b"o", b"$"] + ([b"\xff\xfe"] if fast is None else [])
    with PlainNatsConnection(shared.url) as raw:
        for i, subject in enumerate(subjects):
            block = blocks[i % len(blocks)]
            where = name.encode() + b"." + subject
            raw.send(b"HPUB %b %d %d\r\n%bxyz\r\n" % (where, len(block), len(block) + 3, block))
        eventually(lambda: admin.info(name)["state"]["last_seq"] == len(subjects), "all are stored")
    with reading(shared.url, fast) as logs:
        found = everything(logs.log(name).read(0, len(subjects)))
    assert [r.payload for r in found] == [b"xyz"] * len(subjects)
    assert [r.headers for r in found[:4]] == [{"A": [r"\xff\xfe", "2"]}, {"B": [" x "]}, None, None]
    assert [r.topic for r in found[:4]] == [f"{name}.o", f"{name}.o.é", f"{name}.o", f"{name}.$"]
    assert all(r.topic == rf"{name}.\xff\xfe" for r in found[4:])


# --- permissions ---------------------------------------------------------------------------------------------


DENIED = [
    ("$JS.API.STREAM.INFO.*", "log"),
    ("$JS.API.STREAM.NAMES", "names"),
    ("$JS.API.CONSUMER.CREATE.>", "read"),
    ("$JS.API.CONSUMER.MSG.NEXT.>", "read"),
    ("$JS.API.CONSUMER.CREATE.>", "at"),
    ("$JS.API.STREAM.PURGE.*", "trim"),
]
TIDYING, CONSUMERS = "$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.>"
READERS = [*sorted({deny for deny, _ in DENIED}), TIDYING, CONSUMERS]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """``admin`` may everything; for each of :data:`READERS` there is a reader who may everything but that. A stream S
    holds three records."""
    users = ["{user: admin, password: a}"]
    for i, deny in enumerate(READERS):
        users.append(f'{{user: reader{i}, password: r, permissions: {{ publish: {{ deny: ["{deny}"] }} }} }}')
    # the inbox of the connection itself is allowed, that of a feed is not
    inbox = '{ subscribe: { allow: ["_INBOX.>"], deny: ["_INBOX.*.*"] } }'
    users.append(f"{{user: deaf, password: r, permissions: {inbox} }}")
    folder = tmp_path_factory.mktemp("strict") / "nats"
    with NatsServer(folder, config=f"authorization {{ users: [ {', '.join(users)} ] }}") as server:
        with Admin(server.url, user="admin", password="a") as admin:
            admin.create_stream("S", ["S.>"])
            for i in range(3):
                admin._run(admin._client.publish(f"S.{i}", b""))
            eventually(lambda: admin.info("S")["state"]["last_seq"] == 3, "three are stored")
        yield server


def reader(denied: str) -> dict[str, Any]:
    """How the reader logs in who may not do this."""
    return {"user": f"reader{READERS.index(denied)}", "password": "r"}


@BOTH
@pytest.mark.parametrize(("deny", "call"), DENIED)
def test_a_missing_permission_is_named(strict: NatsServer, deny: str, call: str, fast: bool | None) -> None:
    with reading(strict.url, fast, **reader(deny)) as logs:
        calls: dict[str, Callable[[], object]] = {
            "log": lambda: logs.log("S"),
            "names": lambda: logs.names(["S.>"]),
            "read": lambda: list(logs.log("S").read(0, 3)),
            "at": lambda: logs.log("S").at(0),
            "trim": lambda: logs.log("S").trim(2),
        }
        with pytest.raises(ConfigError, match=deny.rstrip(">*").replace("$", r"\$").replace(".", r"\.")):
            calls[call]()


@BOTH
def test_an_inbox_that_may_not_be_read_is_named(strict: NatsServer, fast: bool | None) -> None:
    """The inbox of the connection itself is allowed, that of a feed is not."""
    logs = NatsLogs(NatsSettings((strict.url,), user="deaf", password="r", fast=fast))
    with pytest.raises(ConfigError, match="_INBOX"):
        logs.open()
    logs.close()


def test_permissions_that_only_tidy_up_are_not_needed(strict: NatsServer) -> None:
    with reading(strict.url, **reader(TIDYING)) as logs:
        log = logs.log("S")
        assert numbers(log.read(0, 3)) == [1, 2, 3]
        assert log.at(0) == 1


# --- telemetry -----------------------------------------------------------------------------------------------


def lag(admin: Admin, name: str) -> int:
    return int(admin.api(f"CONSUMER.INFO.{name}.telemetry")["num_pending"])


def test_progress_is_seen_at_the_broker(shared: NatsServer, admin: Admin, name: str) -> None:
    fill(shared.url, name, 100)
    with reading(shared.url) as logs:
        log = logs.log(name)
        log.progress("telemetry", 0)
        assert lag(admin, name) == 100
        log.progress("telemetry", 40)
        info = admin.api(f"CONSUMER.INFO.{name}.telemetry")
        assert (info["num_pending"], info["ack_floor"]["stream_seq"]) == (60, 40)
        assert info["config"]["ack_policy"] == "all"
        log.progress("telemetry", 100)
        assert lag(admin, name) == 0
        log.progress("telemetry", 50, [f"{name}.0"])
        assert lag(admin, name) == 25


def test_progress_that_cannot_be_shown_is_logged_and_nothing_else(
    strict: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(strict.url, **reader(CONSUMERS)) as logs, caplog.at_level(logging.WARNING, "mama_spark"):
        log: NatsLog = logs.log("S")
        log.progress("telemetry", 2)
        assert "telemetry" in caplog.text
        assert "no permission" in caplog.text
        caplog.clear()
        log.progress("not a name", 2)
        assert "no name of a consumer" in caplog.text


def test_a_consumer_of_somebody_else_is_not_moved(
    shared: NatsServer, admin: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(shared.url, name, 10)
    theirs = {"stream_name": name, "config": {"durable_name": "telemetry", "ack_policy": "explicit"}}
    admin.api(f"CONSUMER.CREATE.{name}.telemetry", theirs)
    with reading(shared.url) as logs, caplog.at_level(logging.WARNING, "mama_spark"):
        logs.log(name).progress("telemetry", 5)
    assert lag(admin, name) == 10
    assert "somebody else's" in caplog.text

"""Reading a stream while servers restart and connections are cut: the same records, none twice, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.read import pull_subscription
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.log_suite import LoggedRecord, everything, rows
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_cluster import Cluster, await_replicas
from tests.support.nats.nats_log import MANY, consumers, fill, held_to, reading
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

HELD = 8000


@pytest.mark.own_server
def test_a_server_that_restarts_costs_nothing(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["S.>"])
        fill(nats_server.url, "S")
        with reading(nats_server.url) as logs:
            batches = logs.log("S").read(0, MANY)
            found = list(rows(next(batches)))
            nats_server.kill()
            nats_server.restart()
            held_to(found + everything(batches))


def test_a_connection_that_is_cut_costs_nothing(shared: NatsServer, full: str) -> None:
    with Proxy(shared.url) as proxy, reading(proxy.url) as logs:
        found: list[LoggedRecord] = []
        for i, batch in enumerate(logs.log(full).read(0, MANY)):
            found += rows(batch)
            if i in (0, 3):
                proxy.cut()
        held_to(found)
        POOL.clear()


@pytest.mark.own_server(config='write_deadline: "200ms"')
def test_a_reader_that_is_held_for_too_long_goes_on(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads its rows is slow, and nobody else reads its connection: the server ends it where the buffers of two
    sockets do not hold what was requested."""
    monkeypatch.setattr(pull_subscription, "REQUEST_BYTES", 32 << 20)
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["S.>"])
        fill(nats_server.url, "S", HELD, 8000)
        with reading(nats_server.url) as logs:
            batches = logs.log("S").read(0, HELD)
            found = list(rows(next(batches)))
            eventually(lambda: nats_server.ask("varz")["slow_consumers"], "the server has waited for long enough")
            held_to(found + everything(batches), HELD)
    POOL.clear()


def test_nobody_answers_for_longer_than_the_time_limit(shared: NatsServer, full: str) -> None:
    with Proxy(shared.url) as proxy:
        with reading(proxy.url) as logs:
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


@pytest.mark.thorough
def test_a_replicated_stream_whose_leader_goes_is_read_on(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster, Admin(cluster.url) as admin:
        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        config = {"name": "S", "subjects": ["S.>"], "num_replicas": 3, "storage": "file"}
        eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
        fill(cluster.url, "S")
        await_replicas(admin, "S")
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

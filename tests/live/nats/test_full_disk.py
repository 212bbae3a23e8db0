"""A nats-server whose disk is full: it goes on answering the API and answers no publish.

A limit on the size of files (RLIMIT_FSIZE) makes the write of its store fail, as a full disk does: the server reports
the same "critical write error", and is as silent afterwards, also when there is room again, until it is restarted. A
limit needs no mount, so it works in every container.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.full_disk import limit_files
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin
from tests.support.publisher_harness import LONG, NatsPublisherHarness, ack_of

pytestmark = [
    pytest.mark.own_server,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux only"),
]

WINDOW = 256


def test_silence_is_one_outage_whatever_the_size_of_the_task_and_says_that_nothing_is_stored(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")
    with (
        Admin(nats_server.url) as admin,
        Driver(nats_server.url, window=WINDOW, wait_timeout=1.0, deadline=4.0, ack_mode="message") as driver,
    ):
        admin.create_stream("S", ["s.>"])
        driver.begin(["s.a"], 10)
        limit_files(nats_server)
        driver.put(["s.a"], 4_000)
        with pytest.raises(BackgroundTaskFailed) as ended:
            driver.drain()
        text = str(ended.value)
        assert "nothing was acknowledged for 4 s: nats-server" in text
        assert "answers, but stores nothing: stream 'S' stays at sequence" in text
        assert "must be restarted; what was acknowledged is stored, what waits is not" in text
        warned = [r.getMessage() for r in caplog.records if "nothing was acknowledged for" in r.getMessage()]
        assert warned, "it was said before the task failed"
        assert "answers, but stores nothing" in warned[0]
        assert "after 4 s the write gives up" in warned[0]
        events = driver.events()
        assert 0 < events["timeout"] <= WINDOW, "one window waited, not one window after another"
        assert events["completed_exceptionally"] == driver.sent - events["acked"] - events["timeout"]


def test_a_server_that_was_started_on_a_full_disk_refuses_with_the_cause_and_the_cure(
    nats_server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the space that is free when it starts, the server reckons what its streams may take; a limit below what they
    take already is the same to it."""
    caplog.set_level(logging.WARNING, "mama_spark")
    with Admin(nats_server.url) as admin:
        admin.create_stream("S", ["s.>"])
        fresh_message_gets_through(nats_server.url, "s.first", dedup=False)
    nats_server.stop()
    full = NatsServer(nats_server.folder, port=nats_server.port, jetstream="max_file_store: 1")
    cure = "insufficient resources (the streams take more storage than nats-server allows itself"
    with full, Driver(full.url, wait_timeout=0.5, deadline=2.0, ack_mode="message") as driver:
        driver.put(["s.a"], 100)
        with contextlib.suppress(BackgroundTaskFailed):  # or the rows end first, each at its own deadline
            driver.drain()
        assert driver.counters.acked == 0
        assert any(
            cure in reason and "then restart it; the message is not stored" in reason for reason in driver.reasons
        ), driver.reasons[:3]
        said = [r.getMessage() for r in caplog.records]
        assert any(cure in text for text in said), "it was said before the task failed"
    nats_server.start()
    with Admin(nats_server.url) as admin:
        assert len(admin.messages("S")) == 1, "what was refused was not stored"
    fresh_message_gets_through(nats_server.url, "s.new", dedup=False)


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_what_waits_for_a_full_disk_is_stored_once_when_the_server_is_restarted(
    tmp_path: Path, replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader stays one, and silent, until then."""
    caplog.set_level(logging.WARNING, "mama_spark")
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": replicas, "storage": "file"}
    options: dict[str, Any] = {"window": WINDOW, "wait_timeout": 0.5, "deadline": 1.0, "ack_mode": "message"}
    with ExitStack() as ends:
        there: NatsServer | Cluster = NatsServer(tmp_path) if replicas == 1 else Cluster(tmp_path)
        ends.enter_context(there)
        admin = ends.enter_context(Admin(there.url))
        eventually(lambda: "error" not in admin.api("STREAM.CREATE.S", config), "three peers are known")
        leader = str(eventually(lambda: admin.info("S")["cluster"].get("leader"), "a leader"))
        server = there if isinstance(there, NatsServer) else there.node(leader)
        with Driver(there.url, on_outage=OnOutage.WAIT, **options) as driver:
            publisher = driver.publisher
            assert publisher is not None
            driver.begin(["s.a"], 10)
            limit_files(server)
            for _ in range(2):
                driver.put(["s.a"], 2_000)
            eventually(lambda: publisher.outage_cause, "the cause is found")
            assert "answers, but stores nothing: stream 'S' stays at sequence" in publisher.outage_cause
            limit_files(server, resource.RLIM_INFINITY)
            acked, sends = driver.counters.acked, driver.counters.sends
            eventually(lambda: driver.counters.sends > sends, "it tries when there is room again")
            assert driver.counters.acked == acked, "a server whose write failed stores nothing until its restart"
            server.restart()
            driver.drain()
            assert driver.events() == {"acked": driver.sent}, driver.reasons[:3]
            driver.conserved(admin)
        assert any("messages are acknowledged again" in r.getMessage() for r in caplog.records)
        fresh_message_gets_through(there.url, "s.new")


def test_a_managed_publisher_says_that_nothing_is_stored_in_the_log_and_in_its_errors(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")
    harness = NatsPublisherHarness(nats_server)
    try:
        with harness.publisher(wait_timeout=2.0) as publisher:
            assert harness.admin.publish(harness.topic, b"x")["seq"] == 1
            limit_files(nats_server)
            futures = [publisher.publish_async(harness.topic, b"x" * 1_000) for _ in range(200)]
            errors = [ack_of(future).exception(LONG) for future in futures]
        last = str(errors[-1])
        assert "no acknowledgement within 2 s: nats-server" in last
        assert f"answers, but stores nothing: stream {harness.stream!r} stays at sequence" in last
        assert "must be restarted" in publisher.outage_cause
        (warned,) = [text for r in caplog.records if "nothing was acknowledged for" in (text := r.getMessage())]
        assert "each message fails at its own deadline" in warned
    finally:
        harness.close()

"""The managed publisher over a live nats-py JetStream context, where a real server has its own say."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from mama_spark.contracts.errors import (
    BackgroundTaskFailed,
    ConfigError,
    ExpectationFailed,
    PermissionDenied,
    PublishError,
)
from mama_spark.nats import NatsBridge, NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.api import Flight, PublishOptions, RetryConfig
from mama_spark.publishing.managed.managed_publisher import ManagedPublisher
from mama_spark.testing.waiting import until
from nats.aio.client import Client

from tests.support.nats.nats_servers import Admin
from tests.support.publisher_harness import LONG, NatsPublisherHarness, RecordingListener, ack_of, patient

RETRY = RetryConfig.doubling(0.05, 0.2, deadline=LONG)


@pytest.fixture
def harness(nats_server: NatsServer) -> Iterator[NatsPublisherHarness]:
    with NatsPublisherHarness(nats_server) as harness:
        yield harness


# --- the connection --------------------------------------------------------------------------------------------


@pytest.mark.spec("MP-02")
def test_a_plain_thread_publishes_over_a_client_whose_loop_runs_elsewhere(harness: NatsPublisherHarness) -> None:
    """Constructed, used and ended on this thread, which has no event loop."""
    with ManagedPublisher(harness.target(), client=harness.client, loop=harness.loop.loop) as publisher:
        future = publisher.publish_async(harness.topic, b"x")
    assert ack_of(future).result(0).sequence == 1


def test_a_context_without_its_client_or_its_loop_is_refused_and_the_error_names_the_way_out() -> None:
    client = Client()
    with pytest.raises(ConfigError, match="give it as client="):
        ManagedPublisher(client.jetstream())
    with pytest.raises(ConfigError, match="as loop="):
        ManagedPublisher(client.jetstream(), client=client)


@pytest.mark.parametrize("attached", [True, False], ids=["live context", "bridge"])
def test_publish_msg_async_with_a_domain(tmp_path: Path, attached: bool) -> None:
    """As TestPublishMsgAsync, "domain": acknowledgements name it ahead of the sequence."""
    try:
        with NatsPublisherHarness.started(tmp_path, jetstream="domain: hub", domain="hub") as harness:
            target = harness.target() if attached else NatsBridge(NatsSettings((harness.server.url,), stream="S"))
            with harness.publisher(target=target) as publisher:
                futures = [publisher.publish_async(harness.topic, b"%d" % i) for i in range(100)]
            acks = [ack_of(f).result(0) for f in futures]
            assert [(a.stream, a.sequence, a.domain) for a in acks] == [("S", i, "hub") for i in range(1, 101)]
    finally:
        POOL.clear()


# --- expectations ----------------------------------------------------------------------------------------------

EXPECTATIONS = [
    (PublishOptions(expected_stream="S"), PublishOptions(expected_stream="OTHER")),
    (PublishOptions(expected_last_msg_id="p-1"), PublishOptions(expected_last_msg_id="no")),
    (PublishOptions(expected_last_sequence=1), PublishOptions(expected_last_sequence=9)),
    (PublishOptions(expected_last_subject_sequence=1), PublishOptions(expected_last_subject_sequence=9)),
    tuple(
        PublishOptions(expected_last_subject_sequence=n, expected_last_subject_sequence_subject="t.*") for n in (1, 9)
    ),
]


@pytest.mark.spec("MP-22")
@pytest.mark.parametrize(
    ("good", "bad"), EXPECTATIONS, ids=["stream", "msg id", "seq", "subject seq", "seq for subject"]
)
def test_publish_expectations(harness: NatsPublisherHarness, good: PublishOptions, bad: PublishOptions) -> None:
    """What carries one is never resent blindly, so a refusal comes after one send."""
    with harness.publisher(retry_config=RETRY) as publisher:
        assert ack_of(publisher.publish_async("t.x", b"1")).result(LONG).sequence == 1
        refused = publisher.publish_async("t.x", b"bad", options=bad).result(LONG)
        assert isinstance(refused.publish_ack_future.exception(LONG), ExpectationFailed)
        assert refused.sends == 1
        assert ack_of(publisher.publish_async("t.x", b"2", options=good)).result(LONG).sequence == 2
    assert harness.payloads() == [b"1", b"2"]


def test_wrong_last_id_reaches_the_handler_with_the_message_and_is_resent_there(harness: NatsPublisherHarness) -> None:
    """As test_JetStreamPublishAsync (AckHandler) and TestPublishAsyncRetryInErrHandler: all ten are stored."""
    publisher = harness.publisher()

    class Again(RecordingListener):
        def completed_exceptionally(self, flight: Flight) -> None:
            super().completed_exceptionally(flight)
            publisher.publish_async(flight.subject, flight.body)

    listener = publisher.listener = Again()
    publisher.start()
    wrong = PublishOptions(expected_last_msg_id="wrong")
    for i in range(10):
        publisher.publish_async("t.x", b"%d" % i, options=wrong)
    until(lambda: publisher.counters.acked == 10)
    publisher.drain(LONG)
    assert len([1 for event, _ in listener.heard if event == "completed_exceptionally"]) == 10
    assert sorted(map(int, harness.payloads())) == list(range(10))


# --- refusals --------------------------------------------------------------------------------------------------


def test_429_in_mid_stream_shrinks_the_window_and_loses_nothing(tmp_path: Path) -> None:
    with NatsPublisherHarness.started(tmp_path, jetstream="max_buffered_msgs: 10") as harness:
        with harness.publisher(max_in_flight=500, refill_allowed_at=250, retry_config=RETRY) as publisher:
            for i in range(1000):
                publisher.publish_async(harness.topic, b"%d" % i)
        assert publisher.counters.acked == 1000
        assert sorted(map(int, harness.payloads())) == list(range(1000))


LOGIN: dict[str, Any] = {"user": "a", "password": "p"}


def test_a_denied_subject_fails_at_once_and_no_other_flight(tmp_path: Path) -> None:
    users = 'authorization { users = [ {user: a, password: p, permissions: {publish: {deny: "t.Secret"}}} ] }'
    with NatsPublisherHarness.started(tmp_path, config=users, **LOGIN) as harness:
        with harness.publisher(wait_timeout=LONG, retry_config=RETRY) as publisher:
            denied = [publisher.publish_async("t.Secret", b"%d" % i) for i in range(5)]
            allowed = [publisher.publish_async("t.open", b"%d" % i) for i in range(5)]
            errors = [ack_of(f).exception(LONG / 2) for f in denied]
            assert all(isinstance(error, PermissionDenied) for error in errors), "reported, not waited for"
            assert all(ack_of(f).result(LONG) for f in allowed)
        assert len(harness.held()) == 5


def test_a_denied_inbox_ends_the_publisher_and_tells_every_waiter(tmp_path: Path) -> None:
    users = """authorization { users = [ {user: a, password: p},
        {user: deaf, password: p, permissions: {subscribe: {deny: "_INBOX.>"}}} ] }"""
    harness = NatsPublisherHarness.started(tmp_path, config=users, **LOGIN)

    async def quiet(_: Exception) -> None: ...

    async def deaf() -> BaseException | None:
        client = await nats.connect(harness.server.url, user="deaf", password="p", error_cb=quiet)
        publisher = ManagedPublisher(client.jetstream(), client=client, wait_timeout=LONG)
        try:
            future = publisher.publish_async(harness.topic, b"x")
            publisher.start()
            error = await asyncio.to_thread(future.exception, LONG)
            with pytest.raises(BackgroundTaskFailed, match="_INBOX"):
                publisher.publish_async(harness.topic, b"x")
        finally:
            await asyncio.to_thread(publisher.stop)
            await client.close()
        return error

    try:
        assert isinstance(asyncio.run(deaf()), PublishError)
        assert not harness.held()
    finally:
        harness.close()


# --- outages ---------------------------------------------------------------------------------------------------


@pytest.mark.own_server
def test_publish_async_reset_pending_on_reconnect(harness: NatsPublisherHarness) -> None:
    """100 in flight, the server goes and comes back: every future resolves, and nothing is lost."""
    publisher = harness.publisher(max_in_flight=100, retry_config=RETRY).start()
    assert ack_of(publisher.publish_async(harness.topic, b"first")).result(LONG)
    harness.server.pause()
    patient(publisher, 1.0)
    futures = [publisher.publish_async(harness.topic, b"%d" % i) for i in range(100)]
    until(lambda: publisher.counters.sends > 100)
    harness.server.kill()
    harness.server.start()
    publisher.drain(LONG)
    assert [ack_of(f).exception(0) for f in futures] == [None] * 100
    assert sorted(harness.payloads()) == sorted([b"first", *(b"%d" % i for i in range(100))]), (
        "resends carry the same id"
    )
    assert publisher.window.in_flight == 0


# --- The pages on the managed publisher: their examples run, and every parameter is listed ---------------------------

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = (ROOT / "docs" / "how-to" / "publish-from-plain-python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", HOW_TO)


def test_the_example_runs(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("ORDERS", ["orders.>"])
        names: dict[str, Any] = {}
        exec(EXAMPLES[0].replace("nats://127.0.0.1:4222", nats_server.url), names)
        assert [(ack.stream, ack.sequence) for ack in names["acks"]] == [("ORDERS", i) for i in range(1, 11)]
        assert [m.payload for m in admin.messages("ORDERS")] == [b"hello"] * 10


def test_the_example_for_plain_threads_runs(harness: NatsPublisherHarness) -> None:
    harness.admin.create_stream("ORDERS", ["orders.>"])
    names: dict[str, Any] = {**globals(), "js": harness.target(), **harness.given()}
    exec(EXAMPLES[1], names)
    assert (names["ack"].stream, names["ack"].sequence) == ("ORDERS", 1)


def test_the_reference_has_every_parameter() -> None:
    parameters = [name for name in inspect.signature(ManagedPublisher).parameters if name != "self"]
    text = f"{ManagedPublisher.__doc__}{ManagedPublisher.__init__.__doc__}"
    assert [name for name in parameters if f":param {name}:" not in text and f"``{name}``" not in text] == []

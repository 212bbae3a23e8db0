"""The managed publisher over a live nats-py JetStream context and a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.errors import AckTimeout, BadTopic, ExpectationFailed, PublishError, TooLarge
from mama_spark.publisher.api import Flight, PublishAck, PublishOptions, RetryConfig
from mama_spark.publisher.managed import ManagedPublisher
from mama_spark.testing.servers import Admin, nats_server  # noqa: F401
from nats.aio.client import Client
from nats.js import JetStreamContext

LONG = 60.0


@pytest.fixture
def server(nats_server: NatsServer) -> NatsServer:  # noqa: F811
    return nats_server


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(server.url) as admin:
        admin.create_stream("S", ["t.>"])
        yield admin


async def connected(server: NatsServer) -> tuple[Client, JetStreamContext]:
    client = await nats.connect(server.url)
    return client, client.jetstream()


async def ack_of(flight: Flight) -> PublishAck:
    return await asyncio.wait_for(asyncio.wrap_future(flight.publish_ack_future), LONG)


def test_example_with_a_live_context(server: NatsServer, admin: Admin) -> None:
    async def example() -> list[PublishAck]:
        client = await nats.connect(server.url)
        async with ManagedPublisher(client.jetstream(), max_in_flight=100) as publisher:
            flights = [await publisher.publish(f"t.{i}", b"hello") for i in range(10)]
            acks = [await asyncio.wrap_future(flight.publish_ack_future) for flight in flights]
        await client.close()
        return acks

    assert [(ack.stream, ack.sequence) for ack in asyncio.run(example())] == [("S", i) for i in range(1, 11)]


def test_publish_async_1000_in_order(server: NatsServer, admin: Admin) -> None:
    async def run() -> None:
        client, js = await connected(server)
        async with ManagedPublisher(js) as publisher:
            futures = [publisher.publish_async("t.x", b"%d" % i) for i in range(1000)]
        assert all(f.result(0).publish_ack_future.result(0) for f in futures)
        await client.close()

    asyncio.run(run())
    assert [int(m.payload) for m in admin.messages("S")] == list(range(1000))


def test_publish_msg_async_with_msg_id_is_a_duplicate(server: NatsServer, admin: Admin) -> None:
    async def run() -> list[bool]:
        client, js = await connected(server)
        async with ManagedPublisher(js) as publisher:
            mine = PublishOptions(msg_id="mine")
            acks = [await ack_of(await publisher.publish("t.x", b"", options=mine)) for _ in range(2)]
        await client.close()
        return [a.duplicate for a in acks]

    assert asyncio.run(run()) == [False, True]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (PublishOptions(expected_stream="S"), PublishOptions(expected_stream="OTHER")),
        (PublishOptions(expected_last_msg_id="p-1"), PublishOptions(expected_last_msg_id="no")),
        (PublishOptions(expected_last_sequence=1), PublishOptions(expected_last_sequence=9)),
        (PublishOptions(expected_last_subject_sequence=1), PublishOptions(expected_last_subject_sequence=9)),
    ],
)
def test_publish_expectations(server: NatsServer, admin: Admin, good: PublishOptions, bad: PublishOptions) -> None:
    async def run() -> None:
        client, js = await connected(server)
        async with ManagedPublisher(js, id_prefix="p", retry_config=RetryConfig()) as publisher:
            await ack_of(await publisher.publish("t.x", b"1"))
            refused = await publisher.publish("t.x", b"bad", options=bad)
            with pytest.raises(ExpectationFailed):
                await ack_of(refused)
            assert refused.sends == 1
            assert (await ack_of(await publisher.publish("t.x", b"2", options=good))).sequence == 2
        await client.close()

    asyncio.run(run())


def test_retry_until_the_stream_exists(server: NatsServer) -> None:
    """As testRetryJsApis and TestPublishAsyncRetry: the stream is made after the first refusal."""

    async def run(admin: Admin) -> int:
        client, js = await connected(server)
        async with ManagedPublisher(js, retry_config=RetryConfig.doubling(0.05, 0.2, LONG)) as publisher:
            flight = await publisher.publish("late.x", b"1")
            await asyncio.to_thread(admin.create_stream, "LATE", ["late.>"])
            await ack_of(flight)
        await client.close()
        return flight.sends

    with Admin(server.url) as admin:
        asyncio.run(run(admin))
        assert [m.payload for m in admin.messages("LATE")] == [b"1"]


def test_no_ack_stream_times_out_and_frees_its_place(server: NatsServer) -> None:
    """As TestPublishAsyncAckTimeout: a stream that never acknowledges; publishing stays possible."""

    async def run() -> None:
        client, js = await connected(server)
        async with ManagedPublisher(js, max_in_flight=1, wait_timeout=0.2) as publisher:
            for _ in range(2):
                flight = await publisher.publish("quiet", b"")
                with pytest.raises(AckTimeout):
                    await ack_of(flight)
        await client.close()

    with Admin(server.url) as admin:
        admin.create_stream("QUIET", ["quiet"], no_ack=True)
        asyncio.run(run())


def test_bad_subject_and_too_large_fail_unsent_and_the_connection_lives(server: NatsServer, admin: Admin) -> None:
    """As testMaxPayloadJs: header and payload over the limit would make the server close the connection."""

    async def run() -> None:
        client, js = await connected(server)
        async with ManagedPublisher(js) as publisher:
            with pytest.raises(BadTopic):
                await publisher.publish("t.*", b"")
            with pytest.raises(TooLarge):
                await publisher.publish("t.x", bytes(1 << 20), {"h": "v"})
            assert (await ack_of(await publisher.publish("t.x", b"ok"))).sequence == 1
        await client.close()

    asyncio.run(run())


def test_a_full_stream_refuses_and_says_so(server: NatsServer) -> None:
    async def run() -> None:
        client, js = await connected(server)
        async with ManagedPublisher(js) as publisher:
            await ack_of(await publisher.publish("full", b"1"))
            with pytest.raises(PublishError) as caught:
                await ack_of(await publisher.publish("full", b"2"))
            assert caught.value.code == 10077
        await client.close()

    with Admin(server.url) as admin:
        admin.create_stream("FULL", ["full"], max_msgs=1, discard="new")
        asyncio.run(run())

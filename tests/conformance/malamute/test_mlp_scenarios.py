"""What users of the original ran and reported (M, I1 and I2 of the conformance list), against our broker and client."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from threading import Thread
from typing import Any

import pytest
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings
from mama_spark.services.malamute_broker.engines import Delivery
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine

PATIENCE = 60.0
Make = Callable[..., MalamuteClient]


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def client(ends: ExitStack) -> Make:
    broker = ends.enter_context(Broker(BrokerSettings("tcp://127.0.0.1:*")))

    def made(address: str = "", **options: Any) -> MalamuteClient:
        url = broker.endpoint.replace("tcp", "mlp")
        return ends.enter_context(MalamuteClient(url, address, timeout=PATIENCE, **options))

    return made


class Content(list[bytes]):
    """Frames whose end can be seen."""


@pytest.mark.spec("M1", "M2")
def test_a_message_lives_as_long_as_somebody_has_it_and_is_not_copied() -> None:
    """In the original, links of a message are counted by hand."""
    engine = SimpleEngine(b"st")
    held: list[Delivery] = []
    engine.traffic(held.append)
    for name in ("a", "b", "c"):
        engine.compile(name, b"")
    content = Content([b"x"])
    alive = weakref.ref(content)
    engine.accept("writer", b"w", b"s", content)
    assert [delivery.content is content for delivery in held] == [True] * 3
    del content
    while held:
        assert alive() is not None
        held.pop()
    assert alive() is None


@pytest.mark.spec("I1")
@pytest.mark.parametrize(
    ("producers", "consumers", "size", "count"),
    [
        pytest.param(1, 1, 1024, 2000, id="A"),
        pytest.param(1, 1, 32, 5000, id="B"),
        pytest.param(1, 1, 32 * 1024, 300, id="C"),
        pytest.param(2, 2, 1024, 1000, id="D"),
    ],
)
def test_every_message_arrives_between_signal_and_acknowledgement(
    client: Make, producers: int, consumers: int, size: int, count: int
) -> None:
    """Consumers signal by mail that they are there, producers send, consumers acknowledge by mail."""
    body = b"x" * size
    sources = [client(f"producer-{n}") for n in range(producers)]
    failed: list[BaseException] = []

    def consume(number: int) -> None:
        try:
            with closing(client(f"consumer-{number}")) as consumer:
                consumer.read("load", "^m")
                for n in range(producers):
                    consumer.mailbox(f"producer-{n}", "signal")
                seen: dict[str, int] = {}
                for _ in range(producers * count):
                    message = consumer.receive()
                    assert message.content == (body,)
                    assert message.subject == f"m{seen.get(message.sender, 0)}"
                    seen[message.sender] = seen.get(message.sender, 0) + 1
                for n in range(producers):
                    consumer.mailbox(f"producer-{n}", "ack", str(seen[f"producer-{n}"]).encode())
                consumer.sync()
        except BaseException as e:  # noqa: BLE001 told below
            failed.append(e)

    threads = [Thread(target=consume, args=(n,)) for n in range(consumers)]
    for thread in threads:
        thread.start()
    for source in sources:
        assert [source.receive().subject for _ in range(consumers)] == ["signal"] * consumers
        source.write("load")
    for source in sources:
        for n in range(count):
            source.send(f"m{n}", body)
    for source in sources:
        assert [source.receive().content for _ in range(consumers)] == [(str(count).encode(),)] * consumers
    for thread in threads:
        thread.join(PATIENCE)
    assert failed == []


@pytest.mark.spec("I2")
def test_several_producers_of_one_stream_are_heard_each_in_its_order(client: Make) -> None:
    reader = client("r")
    reader.read("st", "")
    writers = [client(f"w{n}") for n in range(5)]
    for writer in writers:
        writer.write("st")
    for n in range(200):
        for writer in writers:
            writer.send(str(n))
    seen: dict[str, list[str]] = {}
    for _ in range(1000):
        message = reader.receive()
        seen.setdefault(message.sender, []).append(message.subject)
    assert seen == {f"w{k}": [str(n) for n in range(200)] for k in range(5)}


@pytest.mark.spec("I2")
def test_readers_that_come_and_go_hear_what_is_sent_while_they_are_there(client: Make) -> None:
    writer = client("w")
    writer.write("st")
    for n in range(30):
        with closing(client("same")) as reader:
            reader.read("st", "^x$")
            writer.send("x", b"%d" % n)
            assert reader.receive().content == (b"%d" % n,)
        writer.send("x", b"nobody is there")
        writer.sync()


@pytest.mark.spec("I2")
def test_a_second_reader_gets_all_frames_too(client: Make) -> None:
    """There, the first took the content of the message that both got."""
    readers = [client(f"r{n}") for n in range(3)]
    for reader in readers:
        reader.read("st", "")
    writer = client("w")
    writer.write("st")
    contents = [(b"one", b"two", b"three"), (b"",), (), (b"x" * 100_000, b"y")]
    for content in contents:
        writer.send("s", content)
    for reader in readers:
        assert [reader.receive().content for _ in contents] == contents


@pytest.mark.spec("I2")
def test_a_flood_leaves_a_reader_its_order_and_its_other_calls(client: Make) -> None:
    reader, writer = client("r", window=100), client("w")
    reader.read("st", "")
    writer.write("st")
    for n in range(10_000):
        writer.send(str(n), b"x" * 100)
        if n % 1000 == 500:
            reader.read("other", f"^{n}$")
            reader.mailbox("w", "still here")
            assert writer.receive().subject == "still here"
    assert [int(reader.receive().subject) for _ in range(10_000)] == list(range(10_000))

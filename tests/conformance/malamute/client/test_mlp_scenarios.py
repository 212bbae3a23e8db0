"""What users of the original ran and reported (M, I1 and I2 of the conformance list), against our broker and client."""

from __future__ import annotations

import weakref
from contextlib import closing
from threading import Thread

import pytest
from mama_spark.malamute.broker.engines import Delivery
from mama_spark.malamute.broker.engines.simple import SimpleEngine

from tests.support.malamute.malamute_clients import PATIENCE, Make


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

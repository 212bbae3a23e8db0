"""What users of the original ran and reported (M, I1 and I2 of the conformance list), against our broker and client."""

from __future__ import annotations

import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

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


@pytest.mark.spec("I1", "F1")
def test_every_message_that_matches_arrives_between_signal_and_acknowledgement(client: Make) -> None:
    """Consumers signal by mail that they are there, producers send, consumers acknowledge by mail."""
    producers, consumers, count, body = 2, 2, 1000, b"x" * 1024
    names = [f"producer-{n}" for n in range(producers)]
    sources = [client(name) for name in names]

    def consume(number: int) -> None:
        with closing(client(f"consumer-{number}")) as consumer:
            consumer.read("load", "^m")
            for name in names:
                consumer.mailbox(name, "signal")
            seen = Counter[str]()
            for _ in range(producers * count):
                message = consumer.receive()
                assert (message.subject, message.content) == (f"m{seen[message.sender]}", (body,))
                seen[message.sender] += 1
            for name in names:
                consumer.mailbox(name, "ack", b"%d" % seen[name])
            consumer.sync()

    with ThreadPoolExecutor(consumers) as pool:
        consuming = [pool.submit(consume, n) for n in range(consumers)]
        for source in sources:
            assert [source.receive().subject for _ in range(consumers)] == ["signal"] * consumers
            source.write("load")
        for source in sources:
            for n in range(count):
                source.send(f"m{n}", body)
                source.send("another", b"x")
        for source in sources:
            assert [source.receive().content for _ in range(consumers)] == [(b"%d" % count,)] * consumers
        assert [one.result(PATIENCE) for one in consuming] == [None] * consumers


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

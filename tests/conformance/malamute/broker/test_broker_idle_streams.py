"""A broker gives back the engines of streams that nobody uses, and loses nothing with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.services.malamute_broker.engines import register
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.testing.waiting import eventually


class RemembersEngine(SimpleEngine):
    """It would lose what it keeps."""

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        super().compile(client, pattern, after)


def _broker(folder: Path) -> Broker:
    register("remembers-for-tests", RemembersEngine)
    kept = {"folder": str(folder)}
    engines = (
        EngineChoice(b"^aging", "durable", {**kept, "max_age": "1d"}),
        EngineChoice(b"^kept", "durable", kept),
        EngineChoice(b"^remembered", "remembers-for-tests"),
    )
    return Broker(BrokerSettings("tcp://127.0.0.1:*", SessionSettings(stream_idle=0.2), engines))


def _threads() -> list[str]:
    """Of the engines that have one of their own."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("stream-"))


def _ends(broker: Broker, *left: bytes) -> Callable[[], bool]:
    names = [f"stream-{name.decode()}" for name in left if name == b"remembered"]
    return lambda: broker.streams() == sorted(left) and _threads() == names


def test_idle_streams_end_and_begin_again_where_they_were(tmp_path: Path) -> None:
    with _broker(tmp_path) as broker:
        url = broker.endpoint.replace("tcp://", "mlp://")
        for sequence in (1, 2):
            with MalamuteClient(url, "reader") as reader, MalamuteClient(url, "writer") as writer:
                for number in range(20):
                    reader.read(f"simple{number}", "")
                reader.read("kept", "")
                writer.write("kept")
                writer.send("s", b"%d" % sequence)
                message = reader.receive(timeout=60)
                assert message is not None
                assert (message.content, message.sequence) == ((b"%d" % sequence,), sequence)
                assert len(broker.streams()) == 21
            eventually(_ends(broker), "all streams have ended")


def test_a_stream_that_would_lose_something_stays(tmp_path: Path) -> None:
    with _broker(tmp_path) as broker:
        url = broker.endpoint.replace("tcp://", "mlp://")
        with MalamuteClient(url, "client") as client:
            for stream in ("simple", "remembered", "aging", "kept"):
                client.read(stream, "")
            client.write("aging")
            client.send("s", b"it gets old")
            client.sync()
        eventually(_ends(broker, b"aging", b"remembered"), "the others have ended")


@pytest.mark.parametrize("stream", ["simple", "kept"])
def test_a_stream_that_has_just_been_ended_opens_at_once(tmp_path: Path, stream: str) -> None:
    with _broker(tmp_path) as broker, MalamuteClient(broker.endpoint.replace("tcp://", "mlp://"), "client") as client:
        assert broker._loop is not None
        for _ in range(20):
            client.read(stream, "")
            client.cancel(stream)
            ended = threading.Event()

            def end(loop: object, ended: threading.Event = ended) -> None:
                engines = broker._loop.engines  # type: ignore[union-attr]
                engines._machine.idle_streams = lambda now: [stream.encode()]  # type: ignore[method-assign]
                engines.end_idle(0.0)
                del engines._machine.idle_streams
                ended.set()

            broker._inspect(end)
            assert ended.is_set()

"""The Malamute client against our broker: the C client's tests by their ids, and a broker that follows a script."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ClientClosed, ConfigError, Unavailable
from mama_spark.malamute.broker.broker.broker import Broker, EngineChoice
from mama_spark.malamute.client import blocking_calls, connection
from mama_spark.malamute.client.client import MalamuteClient, Message
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, write
from mama_spark.testing.waiting import until

from tests.support.clocks import Clock
from tests.support.malamute.malamute_clients import C_CLIENT, PATIENCE, Make, Scripted, nothing, start


@pytest.mark.spec("ML-12", "ML-15", "C1", "S2")
def test_messages_before_the_reader_are_lost_and_then_only_what_matches_comes_in_order(client: Make) -> None:
    writer, reader = client("writer"), client("reader")
    writer.write("weather")
    writer.send("temp.early", b"0")
    writer.sync()
    reader.read("weather", "temp.*")
    for subject, value in (("temp.moscow", b"1"), ("rain.moscow", b"2"), ("temp.madrid", b"3"), ("temp.london", b"5")):
        writer.send(subject, value)
    got = [reader.receive() for _ in range(3)]
    assert got == [
        Message("stream", "weather", "writer", subject, (value,))
        for subject, value in (("temp.moscow", b"1"), ("temp.madrid", b"3"), ("temp.london", b"5"))
    ]
    reader.close()
    writer.send("temp.late", b"6")
    assert writer.sync() == (AckRun(StoreOutcome.ACCEPTED, 5),), "sends succeed when nobody reads"


@pytest.mark.spec("C3")
def test_connecting_to_nonsense_fails_and_a_request_outlives_its_sender(broker: Broker, client: Make) -> None:
    for url in ("tcp://", "ipc", "nowhere", "http://127.0.0.1:1", "mlp://127.0.0.1:99999", ""):
        with pytest.raises(ConfigError):
            MalamuteClient(url)
    with pytest.raises(Unavailable, match="connecting: the broker is not reachable"):
        MalamuteClient("mlp://127.0.0.1:1", timeout=0.3).open()
    worker, asker = client("worker"), client("asker")
    worker.offer("printer", "bw.*")
    worker.offer("printer", "color.*")
    asker.request("printer", "text", b"nobody prints this")
    asker.request("printer", "color.A4", b"photo")
    asker.close()
    assert worker.receive() == Message("service", "printer", "asker", "color.A4", (b"photo",))


@pytest.mark.spec("C4")
@pytest.mark.parametrize("state", ["before", "after"])
def test_calls_without_a_connection_fail_at_once(broker: Broker, state: str) -> None:
    alone = MalamuteClient(broker.endpoint, "alone", timeout=PATIENCE)
    if state == "after":
        alone.open().close()
    calls: list[Callable[[], object]] = [
        lambda: alone.write("s"), lambda: alone.read("s", ""), lambda: alone.offer("s", ""), lambda: alone.cancel("s"),
        lambda: alone.send("x"), lambda: alone.mailbox("a", "x"), lambda: alone.request("s", "x"), alone.sync,
        alone.receive,
    ]  # fmt: skip
    began = time.monotonic()
    for call in calls:
        with pytest.raises(ClientClosed, match=r"not connected|closed"):
            call()
    assert time.monotonic() - began < PATIENCE
    assert not alone.connected
    alone.close()


@pytest.mark.spec("C6")
def test_calls_fail_when_the_broker_dies() -> None:
    broker = start()
    with MalamuteClient(broker.endpoint, "c", timeout=PATIENCE) as client:
        client.write("s")
        broker.stop()
        until(lambda: not client.connected)
        with pytest.raises(Unavailable, match=r"writing to 'other': the broker did not answer .*(lost|listens)"):
            client.write("other", timeout=0.2)
        with pytest.raises(Unavailable, match="sending: not connected"):
            client.send("x", timeout=0.2)
        with pytest.raises(Unavailable, match="waiting for a message: not connected"):
            client.receive(timeout=0.2)
        with pytest.raises(Unavailable):
            client.sync(timeout=0.2)


@pytest.mark.spec("C7", "C8")
@pytest.mark.parametrize("pause", [0.0, pytest.param(10.0, marks=pytest.mark.explore)])
def test_a_broker_that_comes_back_is_found_and_told_everything_again(pause: float) -> None:
    broker = start()
    with MalamuteClient(broker.endpoint, "rc", timeout=PATIENCE) as client:
        client.write("out")
        client.read("in", "^a")
        client.offer("svc", "x")
        client.send("who knows")
        broker.stop()
        until(lambda: not client.connected)
        time.sleep(pause)
        broker = start(broker.endpoint)
        try:
            until(lambda: client.connected)
            with pytest.raises(Unavailable, match="connection was lost"):
                client.sync()
            client.sync()
            assert client.reconnects > 0
            with MalamuteClient(broker.endpoint, "other", timeout=PATIENCE) as other:
                other.read("out")
                client.send("hello")
                assert other.receive() == Message("stream", "out", "rc", "hello", ())
                other.write("in")
                other.send("b")
                other.send("abc", b"1")
                other.request("svc", "x", b"2")
                assert {client.receive().content, client.receive().content} == {(b"1",), (b"2",)}
        finally:
            broker.stop()


@pytest.mark.spec("ML-22")
def test_what_is_stored_while_the_connection_is_lost_comes_behind_it_though_nothing_came_before(tmp_path: Path) -> None:
    """Each pattern goes on behind the place where it began, also if that was told by the broker alone."""

    def serve(bind: str = "") -> Broker:
        return start(bind, engines=(EngineChoice(b"^st$", "durable", {"folder": str(tmp_path)}),))

    broker = serve()
    with MalamuteClient(broker.endpoint, "r", timeout=PATIENCE) as reader:
        publish(broker, "before", "early.before")
        reader.read("st", "^early")
        publish(broker, "between")
        reader.read("st", "^be|^late")
        assert nothing(reader)
        broker.stop()
        until(lambda: not reader.connected)
        elsewhere = serve()
        publish(elsewhere, "late.1", "early.1", "other", "late.2")
        elsewhere.stop()
        broker = serve(broker.endpoint)
        try:
            got = [reader.receive() for _ in range(3)]
            assert [(m.subject, m.sequence) for m in got] == [("late.1", 4), ("early.1", 5), ("late.2", 7)]
            assert nothing(reader)
        finally:
            broker.stop()


def publish(broker: Broker, *subjects: str) -> None:
    with MalamuteClient(broker.endpoint, timeout=PATIENCE) as writer:
        writer.write("st")
        for subject in subjects:
            writer.send(subject)
        assert {run.outcome for run in writer.sync()} == {StoreOutcome.STORED}


@pytest.mark.spec("ML-14", "C10", "C13", "C14")
def test_readers_of_several_streams_hear_each_of_its_own_writer_and_what_a_narrower_pattern_leaves(
    client: Make,
) -> None:
    readers, writers = [client("r1"), client("r2")], [client("w1"), client("w2")]
    for n, writer in enumerate(writers):
        for reader in readers:
            reader.read(f"stream{n}", "temp.*")
            reader.cancel(f"stream{n}")
            reader.read(f"stream{n}", "temp.london")
        writer.write(f"stream{n}")
        for subject in ("temp.moscow", "temp.london", "temp.madrid"):
            writer.send(subject)
        writer.sync()
    for reader in readers:
        told = {(m.address, m.sender, m.subject) for m in (reader.receive(), reader.receive())}
        assert told == {("stream0", "w1", "temp.london"), ("stream1", "w2", "temp.london")}
        assert nothing(reader)


# --- The Malamute client where a broker talks nonsense, refuses, or falls silent --------------------------------------

OK = Ok()


def opened(broker: Scripted, answer: commands.Command = OK) -> MalamuteClient:
    """A client that behaves as the C client."""
    with ThreadPoolExecutor(1) as beside:
        opening = beside.submit(MalamuteClient(broker.url, "c", timeout=PATIENCE, **C_CLIENT).open)
        identity, _ = broker.get()
        broker.put(identity, *encode(answer))
        return opening.result(PATIENCE)


def test_closing_does_not_wait_for_a_broker_that_goes_before_it_answers() -> None:
    script = Scripted()
    client = opened(script)
    with ThreadPoolExecutor(1) as beside:
        closing = beside.submit(client.close, 1e6)
        assert decode(script.get()[1]) == commands.Close()
        script.close()
        closing.result(PATIENCE)


def test_closing_ends_a_call_that_the_broker_does_not_answer(scripted: Scripted) -> None:
    client = opened(scripted)
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(client.sync)
        assert decode(scripted.get()[1]) == commands.Ping()
        client.close(timeout=0.05)
        assert isinstance(waiting.exception(PATIENCE), ClientClosed)


def test_no_call_outlives_its_deadline_though_the_broker_says_nothing(scripted: Scripted) -> None:
    client = opened(scripted, Ok(trailing=write(Extension(features=Feature.ACKS))))
    for call in (
        lambda: client.write("s", timeout=0.05),
        lambda: client.read("s", "", timeout=0.05),
        lambda: client.offer("s", "", timeout=0.05),
        lambda: client.cancel("s", timeout=0.05),
        lambda: client.sync(timeout=0.05),
        lambda: client.receive(timeout=0.05),
    ):
        with pytest.raises(Unavailable, match="in time"):
            call()
    client.close(timeout=0.05)


def test_a_broker_that_takes_nothing_makes_senders_wait_and_then_tells_them(scripted: Scripted) -> None:
    client = opened(scripted)
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(client.write, "s")
        identity, _ = scripted.get()
        scripted.put(identity, *encode(OK))
        writing.result(PATIENCE)

    def flood() -> None:
        for _ in range(500):
            client.send("x", bytes(1_000_000), timeout=0.5)

    with pytest.raises(Unavailable, match="sending: nothing in time"):
        flood()
    began = time.monotonic()
    client.close(timeout=0.05)
    client.close(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE, "closing again does not wait for what will never come"


def test_a_client_whose_process_was_stopped_has_not_lost_its_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker said meanwhile is yet to be read."""
    clock = Clock()
    for module in (blocking_calls, connection):
        monkeypatch.setattr(module, "time", clock)
    with MalamuteClient(broker.endpoint, "c", timeout=PATIENCE) as client:
        client.write("s")
        for _ in range(10):
            clock.ahead += 100.0
            client.send("x")
            assert client.sync() == (AckRun(StoreOutcome.ACCEPTED, 1),)
        assert client.reconnects == 0


def test_a_silent_broker_is_left_for_the_next_one(scripted: Scripted, broker: Broker) -> None:
    url = f"{scripted.url},{broker.endpoint}"
    with MalamuteClient(url, "c", timeout=PATIENCE, silence=0.3) as client:
        client.write("s")
        assert broker.streams() == [b"s"]

"""The Malamute client and what only our broker can do: ids, headers, credit, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from mama_spark.contracts.errors import BackgroundTaskFailed, ConfigError, MamaError, Unavailable
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.protocol.extensions import Feature

from tests.support.malamute.malamute_clients import PATIENCE, Make, nothing, start


@pytest.mark.spec("ML-07", "ML-21")
def test_the_broker_holds_what_the_application_does_not_take(client: Make) -> None:
    reader, writer, manual = client("r", window=10), client("w"), client("m", window=0)
    for one in (reader, manual):
        one.read("s")
    writer.write("s")
    for n in range(100):
        writer.send("x", b"%d" % n)
    writer.sync()
    reader.sync()
    reader.sync()
    assert len(reader._connection.machine.received) + len(reader._inbox) == 10
    assert nothing(manual)
    manual.give_credit(3)
    assert [manual.receive().content for _ in range(3)] == [(b"%d" % n,) for n in range(3)]
    assert nothing(manual)
    assert [reader.receive().content for _ in range(100)] == [(b"%d" % n,) for n in range(100)]


@pytest.mark.spec("ML-26")
def test_a_tracker_reports_whether_the_message_was_confirmed(client: Make) -> None:
    sender, receiver, slow = client("sender"), client("receiver"), client("slow", confirm=False)
    tracker = sender.mailbox("receiver", "x", b"1", tracked=True)
    assert tracker is not None
    with pytest.raises(Unavailable, match="the confirmation of"):
        tracker.wait(timeout=0.05)
    assert not tracker.done
    receiver.receive()
    tracker.wait()
    assert tracker.done
    refused = sender.mailbox("slow", "x", tracked=True)
    assert refused is not None
    slow.confirm(slow.receive(), 300, "no paper")
    with pytest.raises(CallFailed, match="refused with 300: no paper"):
        refused.wait()
    late = sender.mailbox("nobody", "x", expires=0.05, tracked=True)
    assert late is not None
    with pytest.raises(CallFailed, match="timeout"):
        late.wait()


def test_a_foreign_broker_is_asked_for_nothing_that_it_cannot_do() -> None:
    broker = start(features=Feature(0))
    with MalamuteClient(broker.endpoint, "c", timeout=PATIENCE, window=5) as client:
        client.write("s")
        calls: list[Callable[[], object]] = [
            lambda: client.send("x", id="1"),
            lambda: client.send("x", headers={"a": ["1"]}),
            lambda: client.read("s", after=0),
            lambda: client.mailbox("c", "x", tracked=True),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="this broker"):
                call()
        client.send("x")
        assert client.sync() == (), "the PONG says that the broker has it, and nothing more"
        with MalamuteClient(broker.endpoint, "r", timeout=PATIENCE, window=5) as reader:
            reader.read("s")
            for n in range(50):
                client.send("x", b"%d" % n)
            assert [reader.receive().content for _ in range(50)] == [(b"%d" % n,) for n in range(50)]
    broker.stop()


def test_calls_of_many_threads(client: Make) -> None:
    reader, writer = client("r"), client("w")
    reader.read("s")
    writer.write("s")

    def work(k: int) -> None:
        for n in range(50):
            writer.send(f"t{k}", b"%d" % n)
            if n % 10 == 0:
                writer.sync()

    got: dict[str, list[int]] = {}
    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, k) for k in range(4)]
        for _ in range(200):
            m = reader.receive()
            got.setdefault(m.subject, []).append(int(m.content[0]))
        assert [one.result() for one in working] == [None] * 4
    assert got == {f"t{k}": list(range(50)) for k in range(4)}


def test_a_loop_that_dies_takes_its_waiters_with_it(client: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = client("c")

    def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(one._connection.machine, "receive", defect)
    with pytest.raises(BackgroundTaskFailed, match="a defect"):
        one.sync()
    for call in (lambda: one.write("s"), one.receive, lambda: one.send("x")):
        with pytest.raises(MamaError):
            call()

"""The Malamute client: the C client's tests by their ids against our broker, recorded conversations against a scripted
one, and what happens when a broker is not there, goes, comes back, or does not want us."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.errors import BackgroundTaskFailed, ClientClosed, ConfigError, MamaError, Unavailable
from mama_spark.malamute.client import client as client_module
from mama_spark.malamute.client import connection
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings, endpoint
from mama_spark.malamute.client.messages import Message
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, write
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.testing.clocks import Clock
from mama_spark.testing.waiting import until
from zmq.auth.thread import ThreadAuthenticator

from tests.support.ports import lasting_port

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "malamute.json").read_text())
PATIENCE = 60.0
C_CLIENT: dict[str, Any] = {"features": None, "window": None, "ping": 1e6, "silence": 1e6}


def start(bind: str = "", engines: tuple[EngineChoice, ...] = (), **machine: Any) -> Broker:
    bind = bind or f"tcp://127.0.0.1:{lasting_port()}"
    broker = Broker(BrokerSettings(bind, SessionSettings(**{"timeout": 30.0, **machine}), engines, linger=0.5))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            broker.start()
            return broker
        except Unavailable:  # the port of the one before is not free yet
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = start()
    yield broker
    broker.stop()


Make = Callable[..., MalamuteClient]


@pytest.fixture
def client(broker: Broker) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(address: str = "", **options: Any) -> MalamuteClient:
            options.setdefault("timeout", PATIENCE)
            return stack.enter_context(MalamuteClient(broker.endpoint, address, **options))

        yield make


def nothing(client: MalamuteClient) -> bool:
    """Nothing waits, and the broker has nothing more."""
    client.sync()
    try:
        client.receive(timeout=0)
    except Unavailable:
        return True
    return False


# --- the C client's tests ------------------------------------------------------------------------------------------


@pytest.mark.spec("ML-12", "ML-15", "C1")
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


@pytest.mark.spec("ML-24", "C2")
def test_a_broadcast_reaches_both_workers_and_requests_go_round(client: Make) -> None:
    askers, workers = [client("asker1"), client("asker2")], [client("worker1"), client("worker2")]
    for worker in workers:
        worker.read("broadcast", "announce")
        worker.offer("print", "bw.*")
    askers[0].write("broadcast")
    askers[0].send("announce", [b"hello", b"world"])
    assert [w.receive().content for w in workers] == [(b"hello", b"world")] * 2
    askers[0].request("print", "bw.A4", b"one")
    askers[1].request("print", "bw.A4", b"two")
    got = {worker.receive() for worker in workers}
    assert got == {
        Message("service", "print", "asker1", "bw.A4", (b"one",)),
        Message("service", "print", "asker2", "bw.A4", (b"two",)),
    }
    askers[1].write("broadcast")
    askers[1].send("announce", b"again")
    assert [w.receive().sender for w in workers] == ["asker2"] * 2


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
    assert "closed" in repr(alone) or "start" in repr(alone)


@pytest.mark.spec("ML-12", "C5")
def test_an_invalid_pattern_fails_and_the_client_goes_on(client: Make) -> None:
    reader, writer = client("r"), client("w")
    for pattern in ("[", ")", "*", "a**"):
        with pytest.raises(CallFailed, match="StreamRead was refused with 300: "):
            reader.read("s", pattern)
    with pytest.raises(CallFailed, match="ServiceOffer was refused with 300"):
        reader.offer("s", "[")
    reader.read("s", "x")
    writer.write("s")
    writer.send("x")
    assert reader.receive().subject == "x"


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
@pytest.mark.parametrize("pause", [0.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_a_broker_that_comes_back_is_found_and_told_everything_again(pause: float) -> None:
    broker = start()
    with MalamuteClient(broker.endpoint, "rc", timeout=PATIENCE) as client:
        client.write("out")
        client.read("in", "^a")
        client.offer("svc", "x")
        broker.stop()
        until(lambda: not client.connected)
        time.sleep(pause)
        broker = start(broker.endpoint)
        try:
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


def test_a_sync_tells_that_messages_may_be_lost() -> None:
    broker = start()
    with MalamuteClient(broker.endpoint, "c", timeout=PATIENCE) as client:
        client.write("s")
        client.send("x")
        broker.stop()
        until(lambda: not client.connected)
        broker = start(broker.endpoint)
        until(lambda: client.connected)
        with pytest.raises(Unavailable, match="connection was lost"):
            client.sync()
        client.send("y")
        assert client.sync() == (AckRun(StoreOutcome.ACCEPTED, 1),)
    broker.stop()


@pytest.mark.spec("ML-14", "C10")
def test_cancelling_and_a_narrower_pattern_leaves_only_that(client: Make) -> None:
    reader, writer = client("r"), client("w")
    writer.write("s")
    reader.read("s", "temp.*")
    reader.cancel("s")
    reader.read("s", "temp.london")
    for subject in ("temp.moscow", "temp.london", "temp.madrid"):
        writer.send(subject)
    writer.sync()
    assert reader.receive().subject == "temp.london"
    assert nothing(reader)


@pytest.mark.spec("ML-23", "C11")
def test_mail_waits_for_a_reader_that_left(client: Make) -> None:
    writer, reader = client("writer"), client("reader")
    writer.mailbox("reader", "subject 1", [b"one", b"two"])
    assert reader.receive() == Message("mailbox", "reader", "writer", "subject 1", (b"one", b"two"))
    reader.close()
    writer.mailbox("reader", "subject 2", b"2")
    writer.mailbox("reader", "subject 3", b"3")
    writer.sync()
    again = client("reader")
    assert [again.receive().subject for _ in range(2)] == ["subject 2", "subject 3"]


@pytest.mark.spec("C12")
def test_two_offers_and_two_requests_in_order_to_one_worker(client: Make) -> None:
    worker, asker = client("worker"), client("asker")
    worker.offer("printer", "bw.*")
    worker.offer("printer", "color.*")
    asker.request("printer", "bw.A4", b"1")
    asker.request("printer", "color.A5", b"2")
    assert [(m.subject, m.content) for m in (worker.receive(), worker.receive())] == [
        ("bw.A4", (b"1",)),
        ("color.A5", (b"2",)),
    ]


@pytest.mark.spec("C14", "C13")
def test_two_writers_two_streams_two_readers(client: Make) -> None:
    readers, writers = [client("r1"), client("r2")], [client("w1"), client("w2")]
    for n, writer in enumerate(writers):
        for reader in readers:
            reader.read(f"stream{n}", "x")
        writer.write(f"stream{n}")
        writer.send("x")
    for reader in readers:
        assert {(m.address, m.sender) for m in (reader.receive(), reader.receive())} == {
            ("stream0", "w1"),
            ("stream1", "w2"),
        }


@pytest.mark.spec("F1")
def test_many_messages_that_match_and_as_many_that_do_not(client: Make) -> None:
    reader, writer = client("r"), client("w")
    reader.read("s", "^(good|END)")
    writer.write("s")
    for n in range(2000):
        writer.send("good", b"%d" % (n % 100))
        writer.send("bad", b"x")
    writer.send("END")
    got = 0
    while (m := reader.receive()).subject != "END":
        assert m.content == (b"%d" % (got % 100),)
        got += 1
    assert got == 2000


# --- what only our broker can do -----------------------------------------------------------------------------------


def test_ids_and_headers_travel(client: Make) -> None:
    reader, writer = client("r"), client("w")
    reader.read("s")
    writer.write("s")
    writer.send("x", b"1", id="id-1", headers={"A": ["1", "2"], "é": ["ü"]})
    got = reader.receive()
    assert (got.id, got.headers) == ("id-1", (("A", "1"), ("A", "2"), ("é", "ü")))


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
    assert "200" in repr(tracker)
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


def test_a_newer_client_takes_the_address_and_the_older_one_comes_back_to_it(client: Make) -> None:
    older = client("same", ping=0.05)
    newer = client("same", ping=1e6)
    until(lambda: older.reconnects > 0 and older.connected)
    newer.close()


def test_keepalive_does_not_lose_acknowledgements(client: Make) -> None:
    writer = client("w", ping=0.02)
    writer.write("s")
    for _ in range(20):
        writer.send("x")
        time.sleep(0.005)
    assert sum(run.count for run in writer.sync()) == 20


def test_calls_of_many_threads(client: Make) -> None:
    reader, writer = client("r"), client("w")
    reader.read("s")
    writer.write("s")

    def work(k: int) -> None:
        for n in range(50):
            writer.send(f"t{k}", b"%d" % n)
            if n % 10 == 0:
                writer.sync()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    got: dict[str, list[int]] = {}
    for _ in range(200):
        m = reader.receive()
        got.setdefault(m.subject, []).append(int(m.content[0]))
    for thread in threads:
        thread.join()
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


# --- a scripted broker ---------------------------------------------------------------------------------------------


class Scripted:
    """A ROUTER that does what the test says."""

    def __init__(self, secure: Callable[[zmq.Socket[bytes]], None] = lambda socket: None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.set_hwm(10)
        secure(self.router)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"mlp://127.0.0.1:{port}"

    def get(self) -> tuple[bytes, list[bytes]]:
        assert self.router.poll(int(PATIENCE * 1000)), "nothing came"
        identity, *frames = self.router.recv_multipart()
        return identity, frames

    def put(self, identity: bytes, *frames: bytes) -> None:
        self.router.send_multipart([identity, *frames])

    def close(self) -> None:
        self.router.close(0)
        self.context.term()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    script = Scripted()
    yield script
    script.close()


def act(client: MalamuteClient, command: commands.Command) -> Any:
    """The call that makes the client say this."""
    match command:
        case commands.StreamWrite():
            return client.write(command.stream)
        case commands.StreamRead():
            return client.read(command.stream, command.pattern)
        case commands.StreamCancel():
            return client.cancel(command.stream)
        case commands.ServiceOffer():
            return client.offer(command.address, command.pattern)
        case commands.StreamSend():
            return client.send(command.subject, command.content)
        case commands.MailboxSend():
            return client.mailbox(command.address, command.subject, command.content)
        case commands.ServiceSend():
            return client.request(command.address, command.subject, command.content)
        case commands.Ping():
            return client.sync()
        case commands.Open():
            return client.open()
        case _:
            return client.close()


def test_a_recorded_conversation_byte_for_byte(scripted: Scripted) -> None:
    """The others are played with the machine alone."""
    (vector,) = [v for v in VECTORS if v["name"] == "session_a"]
    clients: dict[str, MalamuteClient] = {}
    identities: dict[str, bytes] = {}
    calls: list[threading.Thread] = []
    for step in vector["steps"]:
        who, frames = step["client"], [bytes.fromhex(h) for h in step["hex"]]
        command = decode(frames)
        if step["dir"] == "C>S":
            if isinstance(command, commands.Open):
                address = command.address.decode()
                clients[who] = MalamuteClient(scripted.url, address, timeout=PATIENCE, **C_CLIENT)
            calls.append(threading.Thread(target=act, args=(clients[who], command)))
            calls[-1].start()
            identities[who], got = scripted.get()
            assert got == frames
        else:
            scripted.put(identities[who], *frames)
            if isinstance(command, commands.StreamDeliver | commands.MailboxDeliver | commands.ServiceDeliver):
                message = clients[who].receive()
                assert message.content == tuple(command.content)
                assert message.sender.encode() == command.sender
            elif isinstance(command, Ok | Pong):
                calls[-1].join(PATIENCE)
                assert not calls[-1].is_alive()
    for one in clients.values():
        one.close(timeout=0.05)
    for thread in calls:
        thread.join(PATIENCE)


def test_nonsense_from_a_broker_is_ignored(scripted: Scripted) -> None:
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    for answer in (
        [b""],
        [b"\xaa"],
        [b"\xaa\xa8\x63"],
        [b"nonsense", b"and more"],
        encode(commands.Ping()),
        encode(Ok()),
    ):
        scripted.put(identity, *answer)
    opening.join(PATIENCE)
    assert client.connected
    client.close(0.05)


def test_closing_does_not_wait_for_a_broker_that_goes_before_it_answers() -> None:
    script = Scripted()
    client = MalamuteClient(script.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = script.get()
    script.put(identity, *encode(Ok()))
    opening.join(PATIENCE)
    closing = threading.Thread(target=client.close, args=(1e6,))
    closing.start()
    assert decode(script.get()[1]) == commands.Close()
    script.close()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_broker_that_refuses_says_why(scripted: Scripted) -> None:
    found: list[BaseException] = []

    def attempt() -> None:
        try:
            MalamuteClient(scripted.url, "c", timeout=PATIENCE).open()
        except MamaError as e:
            found.append(e)

    thread = threading.Thread(target=attempt)
    thread.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(commands.Error(300, b"not today")))
    thread.join(PATIENCE)
    assert [str(e) for e in found] == ["connecting was refused with 300: not today"]


def test_no_call_outlives_its_deadline_though_the_broker_says_nothing(scripted: Scripted) -> None:
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(Ok(trailing=write(Extension(features=Feature.ACKS)))))
    opening.join(PATIENCE)
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
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(Ok()))
    opening.join(PATIENCE)
    writing = threading.Thread(target=lambda: client.write("s"))
    writing.start()
    scripted.get()
    scripted.put(identity, *encode(Ok()))
    writing.join(PATIENCE)
    with pytest.raises(Unavailable, match="sending: nothing in time"):
        flood(client)
    began = time.monotonic()
    client.close(timeout=0.05)
    client.close(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE, "closing again does not wait for what will never come"


def flood(client: MalamuteClient) -> None:
    for _ in range(500):
        client.send("x", bytes(1_000_000), timeout=0.5)


def test_a_client_whose_process_was_stopped_has_not_lost_its_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker said meanwhile is yet to be read."""
    clock = Clock()
    for module in (client_module, connection):
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


# --- security ------------------------------------------------------------------------------------------------------


def serve(script: Scripted, stop: threading.Event) -> None:
    """Answers OPEN, WRITE and CLOSE."""
    while not stop.is_set():
        if script.router.poll(20):
            identity, *frames = script.router.recv_multipart()
            script.put(identity, *encode(Pong() if decode(frames) == commands.Ping() else Ok()))


@pytest.fixture
def guarded() -> Iterator[Callable[[Callable[[zmq.Socket[bytes]], None], Callable[[ThreadAuthenticator], None]], str]]:
    with ExitStack() as stack:

        def make(secure: Callable[[zmq.Socket[bytes]], None], admit: Callable[[ThreadAuthenticator], None]) -> str:
            script = Scripted(secure)
            guard = ThreadAuthenticator(script.context)
            guard.start()
            admit(guard)
            stop = threading.Event()
            thread = threading.Thread(target=serve, args=(script, stop))
            thread.start()
            for end in (script.close, guard.stop, thread.join, stop.set):
                stack.callback(end)
            return script.url

        yield make


@pytest.mark.spec("ML-27", "C5")
def test_a_plain_login_is_let_in_or_refused_by_name(guarded: Any) -> None:

    def secure(socket: zmq.Socket[bytes]) -> None:
        socket.plain_server = True

    url = guarded(secure, lambda guard: guard.configure_plain("*", {"u": "right"}))
    with MalamuteClient(url, "c", timeout=PATIENCE, user="u", password="right") as client:
        client.write("s")
    with pytest.raises(ConfigError, match="the broker refused the login") as caught:
        MalamuteClient(url, "c", timeout=PATIENCE, user="u", password="wrong-one").open()
    assert "wrong-one" not in str(caught.value)


@pytest.mark.spec("ML-27")
def test_curve_checks_the_broker_and_the_client(guarded: Any) -> None:
    public, secret = zmq.curve_keypair()
    mine = [key.decode() for key in zmq.curve_keypair()]

    def secure(socket: zmq.Socket[bytes]) -> None:
        socket.curve_server = True
        socket.curve_secretkey = secret

    url = guarded(secure, lambda guard: guard.configure_curve_callback("*", _Only(mine[0])))
    keys: dict[str, Any] = {"curve_public_key": mine[0], "curve_secret_key": mine[1]}
    with MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=public.decode(), **keys) as client:
        client.write("s")
    with pytest.raises(ConfigError, match="the broker refused the login"):
        MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=public.decode()).open()
    other = zmq.curve_keypair()[0].decode()
    with pytest.raises(ConfigError, match="the broker has another key than curve_server_key"):
        MalamuteClient(url, "c", timeout=PATIENCE, curve_server_key=other, **keys).open()


class _Only:
    def __init__(self, key: str) -> None:
        self.key = key.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == zmq.utils.z85.decode(self.key) or key == self.key


@pytest.mark.parametrize(
    "options",
    [
        {"urls": ()}, {"user": "u"}, {"password": "p"}, {"user": "", "password": "p"},
        {"user": "u", "password": "p" * 256},
        {"curve_public_key": "x" * 40, "curve_secret_key": "x" * 40},
        {"curve_server_key": "x" * 39}, {"curve_server_key": "x" * 40, "curve_public_key": "x" * 40},
        {"user": "u", "password": "p", "curve_server_key": "x" * 40},
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConnectionSettings(**options)


def test_a_key_that_is_none_is_told_and_secrets_are_not() -> None:
    with pytest.raises(ConfigError, match="not Z85"):
        MalamuteClient("mlp://127.0.0.1:1", timeout=1.0, curve_server_key=" " * 40).open()
    assert "hush" not in repr(ConnectionSettings(user="u", password="hush"))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("mlp://h", "tcp://h:9999"), ("MLP://h:1/stream", "tcp://h:1"), ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)  # fmt: skip
def test_urls_name_endpoints(url: str, name: str) -> None:
    assert endpoint(url) == name

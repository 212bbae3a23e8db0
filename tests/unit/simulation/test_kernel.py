"""The simulated world itself: time, clocks of hosts, processes that stand still or die, and TCP between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from mama_spark.nats.protocol.server_pool import Server

from tests.simulation.kernel import Host, Scheduler, Stuck
from tests.simulation.network import End, Network
from tests.simulation.sockets import ServerPort, SimSocket
from tests.simulation.threads import SimCondition, SimEvent, SimLock, SimQueue, SimThread


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with Scheduler(1, tracing=True) as scheduler:
        yield scheduler


def test_waits_end_in_the_order_of_time_and_take_none(scheduler: Scheduler) -> None:
    heard: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> Callable[[], None]:
        def sleep() -> None:
            scheduler.sleep(seconds)
            heard.append((name, round(scheduler.now, 3)))

        return sleep

    for name, seconds in (("late", 7200.0), ("soon", 1.0), ("now", 0.0)):
        scheduler.spawn(name, sleeper(name, seconds))
    scheduler.run(within=10_000)
    assert heard == [("now", 0.0), ("soon", 1.0), ("late", 7200.0)]


def test_conditions_events_queues_and_locks_wake_who_waits(scheduler: Scheduler) -> None:
    condition, event, queue, lock = SimCondition(), SimEvent(), SimQueue(), SimLock()
    heard: list[object] = []

    def waiter() -> None:
        with condition:
            heard.append(condition.wait_for(lambda: "told" in heard, 5))
        heard.extend((event.wait(0.5), event.wait(60), queue.get(timeout=60)))
        with lock:
            heard.append(round(scheduler.now, 3))

    def teller() -> None:
        scheduler.sleep(1)
        with condition:
            heard.append("told")
            condition.notify_all()
        scheduler.sleep(2)
        event.set()
        with lock:
            queue.put("put")
            scheduler.sleep(4)

    thread = SimThread(target=waiter)
    thread.start()
    scheduler.spawn("teller", teller)
    scheduler.spawn("joiner", thread.join)
    scheduler.run()
    assert heard == ["told", True, False, True, "put", 7.0]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda s, h: None, 10.0),
        (lambda s, h: setattr(h, "rate", 0.5), 15.0),  # 5 s are left, and take 10
        (lambda s, h: setattr(h, "rate", 0.0), None),
        (lambda s, h: setattr(h, "ahead", 99.0), 10.0),  # the time of day decides nothing
        (lambda s, h: s.freeze(h), None),
        (lambda s, h: (s.freeze(h), s.call_at(30, lambda: s.thaw(h))), 30.0),
        (lambda s, h: s.kill(h), None),
    ],
)
def test_each_host_has_its_own_clock_and_may_stand_still(
    scheduler: Scheduler, fault: Callable[[Scheduler, Host], object], expected: float | None
) -> None:
    host, woke = scheduler.host("h"), list[float]()

    def sleeper() -> None:
        scheduler.sleep(10)
        woke.append(round(scheduler.now, 3))

    scheduler.spawn("sleeper", sleeper, host)
    scheduler.call_at(5, lambda: [fault(scheduler, host)].clear())
    scheduler.spawn("other", lambda: scheduler.sleep(99))
    scheduler.run(200, until=lambda: scheduler.now > 98)
    assert woke == ([] if expected is None else [expected])


def test_a_process_that_is_ended_cleans_up_and_one_that_is_killed_does_not(scheduler: Scheduler) -> None:
    cleaned: list[str] = []

    def process(name: str) -> Callable[[], None]:
        def run() -> None:
            try:
                scheduler.sleep(100)
            finally:
                if not scheduler.closing:
                    cleaned.append(name)

        return run

    ended, killed = scheduler.spawn("ended", process("ended")), scheduler.spawn("killed", process("killed"))
    scheduler.call_at(1, lambda: scheduler.end(ended))
    scheduler.call_at(1, lambda: scheduler.kill(killed))
    scheduler.run()
    assert (cleaned, round(scheduler.now)) == (["ended"], 1)


def test_what_cannot_end_says_who_waits_for_what(scheduler: Scheduler) -> None:
    scheduler.spawn("p", lambda: SimEvent().wait())
    with pytest.raises(Stuck, match=r"p on <Host outside live> waits for an event"):
        scheduler.run()


class Echo:
    """Sends back what comes."""

    def __init__(self) -> None:
        self.heard = bytearray()

    def accept(self, end: End) -> None:
        def look() -> None:
            self.heard += end.incoming
            if data := end.read():
                end.send(data)

        end.notify = look


def test_bytes_come_in_order_and_in_pieces_wait_for_a_held_link_and_break_with_a_cut(scheduler: Scheduler) -> None:
    network, echo = Network(scheduler), Echo()
    network.usual.pieces, network.usual.jitter = 0.9, 0.01
    network.listen(scheduler.host("server"), echo)
    sent, heard, reads = bytes(range(250)), bytearray(), 0

    def client() -> None:
        nonlocal reads
        sock = SimSocket(Server.of("nats://server:1"))
        sock.write([sent[:100], memoryview(sent)[100:]], 250)
        while len(heard) < 250:
            sock.wait(10)
            sock.flush()
            if data := sock.read():
                heard.extend(data)
                reads += 1
        network.hold("here", "server")
        sock.write([b"later"], 5)
        sock.flush()
        assert (sock.written, sock.unsent) == (255, 5)
        scheduler.sleep(10)
        assert bytes(echo.heard) == sent
        network.release("here", "server")
        sock.wait(10)
        assert sock.read()[:1] == b"l"
        network.cut("here", "server")
        scheduler.sleep(1)
        with pytest.raises(ConnectionResetError):
            sock.flush()
        network.refuse(scheduler.host("server"))
        again = SimSocket(Server.of("nats://server:1"))
        again.wait(10)
        with pytest.raises(ConnectionRefusedError):
            again.flush()

    scheduler.spawn("client", client, scheduler.host("here"))
    scheduler.run()
    assert scheduler.errors == []
    assert bytes(heard) == sent
    assert reads > 1


class Echoes:
    """Sends back what comes over each connection, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []

    def opened(self, number: int, now: float) -> Iterable[tuple[int, bytes]]:
        return []

    closed = opened

    def received(self, number: int, data: bytes, now: float) -> Iterable[tuple[int, bytes]]:
        self.heard.append((number, data))
        return [(number, data)]


def test_a_server_reads_late_what_came_over_one_connection_although_its_client_has_left_it(
    scheduler: Scheduler,
) -> None:
    network, echoes = Network(scheduler), Echoes()
    port = ServerPort(network, scheduler.host("server"), echoes)

    def client() -> None:
        first = SimSocket(Server.of("nats://server:1"))
        first.wait(1)
        second = SimSocket(Server.of("nats://server:1"))
        second.wait(1)
        port.late.add(1)
        for sock, text in ((first, b"1"), (second, b"2")):
            sock.write([text], 1)
            sock.flush()
        scheduler.sleep(1)
        first.close(reset=True)
        scheduler.sleep(1)
        assert echoes.heard == [(2, b"2")]
        port.late.clear()
        port.look_soon(1)
        scheduler.sleep(1)
        assert echoes.heard == [(2, b"2"), (1, b"1")]
        assert list(port.connections) == [2]

    scheduler.spawn("client", client, scheduler.host("here"))
    scheduler.run()
    assert scheduler.errors == []


def test_answers_over_the_newest_connection_alone_may_be_late(scheduler: Scheduler) -> None:
    network = Network(scheduler)
    ServerPort(network, scheduler.host("server"), Echoes())
    came: list[tuple[int, int]] = []

    def client() -> None:
        socks = list[SimSocket]()
        for _again in range(2):
            socks.append(SimSocket(Server.of("nats://server:1")))
            socks[-1].wait(1)
        back = network.delay_newest("server", "here", 3.0)
        for _again in range(2):
            began = scheduler.now
            for number, sock in enumerate(socks):
                sock.write([b"1"], 1)
                sock.flush()
                while not sock.read():
                    sock.wait(10)
                came.append((number, round(scheduler.now - began)))
            back()

    scheduler.spawn("client", client, scheduler.host("here"))
    scheduler.run()
    assert scheduler.errors == []
    assert came == [(0, 0), (1, 3), (0, 0), (1, 0)]

"""A connection that its thread drives, with a real server: logins, lists of servers, TLS, what a fork inherits."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import NoResponders, Unavailable
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.jetstream.answers import ApiError
from mama_spark.nats.protocol.frames import PublishFrames
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.read.tail import Asked
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.memory import alone
from tests.support.nats.nats_servers import make_certificates
from tests.support.ports import lasting_port
from tests.support.proxy import Proxy

SOON: dict[str, Any] = {"connect_timeout": 0.3}


@contextmanager
def opened(*urls: str, **options: Any) -> Iterator[SocketConnection]:
    connection = SocketConnection(NatsSettings(urls, **options))
    connection.open()
    try:
        yield connection
    finally:
        connection.close()


def until(connection: SocketConnection, done: Callable[[], bool]) -> None:
    def look() -> bool:
        connection.drive(0.01)
        return done()

    eventually(look, "it is so")


def echoes(connection: SocketConnection) -> bool:
    """A message goes to the server and comes back."""
    got: list[Frame] = []
    sid = connection.subscribe("echo.>", got.append, TIMEOUT)
    assert sid is not None
    connection.publish("echo.a", b"hi", headers={"K": "v"})
    connection.ping(TIMEOUT)
    connection.unsubscribe(sid)
    return [(frame.payload, frame.headers) for frame in got] == [(b"hi", [("K", "v")])]


def test_requests_are_answered_refused_or_nobodys(nats_server: NatsServer) -> None:
    with opened(nats_server.url) as connection:
        assert echoes(connection)
        answer = connection.requests.request("$JS.API.INFO", b"", TIMEOUT)
        assert answer is not None
        assert b"account_info_response" in answer.payload
        with pytest.raises(NoResponders):
            connection.requests.request("nobody", b"", TIMEOUT)
        connection.subscribe("silent", lambda _: None, TIMEOUT)
        with pytest.raises(Unavailable, match=r"no answer to silent within 0\.05 s"):
            connection.requests.request("silent", b"", 0.05)


def test_threads_that_share_a_connection_take_turns(nats_server: NatsServer) -> None:
    """Each gets the answers to its own requests, also if another one reads them."""
    with opened(nats_server.url) as connection, ThreadPoolExecutor(4) as threads:
        connection.subscribe("echo.*", lambda f: connection.publish((f.reply or b"").decode(), f.payload), TIMEOUT)

        def ask(number: int) -> bool:
            wanted = b"%d" % number * 1000
            answer = connection.requests.request(f"echo.{number}", wanted, TIMEOUT)
            return answer is not None and answer.payload == wanted

        assert all(threads.map(ask, range(400)))


def test_who_waits_does_not_keep_a_connection_from_others(nats_server: NatsServer) -> None:
    """Here the answer comes only when somebody else has asked."""
    with opened(nats_server.url) as connection, ThreadPoolExecutor(1) as threads:
        held: list[bytes] = []
        connection.subscribe("held", lambda frame: held.append(frame.reply or b""), TIMEOUT)
        waiting = threads.submit(connection.requests.request, "held", b"", TIMEOUT)
        eventually(lambda: held, "the request is there")
        assert connection.requests.request("$JS.API.INFO", b"", TIMEOUT) is not None
        connection.publish(held[0].decode(), b"at last")
        answer = waiting.result(TIMEOUT)
        assert answer is not None
        assert answer.payload == b"at last"


def test_a_request_that_is_not_waited_for(nats_server: NatsServer) -> None:
    with opened(nats_server.url) as connection:
        for call, body, expected in (
            ("INFO", None, "streams"),
            ("STREAM.INFO.S", {"deleted_details": True}, "stream not found"),
        ):
            asked = Asked(connection, call, body, TIMEOUT)
            found: list[str] = []

            def come(asked: Asked = asked, found: list[str] = found) -> bool:
                try:
                    found += asked.answer() or ()
                except ApiError as e:
                    found.append(e.description)
                return bool(found)

            eventually(come, "the answer is there")
            assert expected in found
        connection.subscribe("$JS.API.silent", lambda _: None, TIMEOUT)
        late = Asked(connection, "silent", None, 0.0)
        with pytest.raises(Unavailable, match=r"no answer to \$JS.API.silent"):
            late.answer()
        lost = Asked(connection, "silent", None, TIMEOUT)
        connection.close()
        with pytest.raises(Unavailable):
            lost.answer()
        with pytest.raises(Unavailable, match="not connected"):
            Asked(connection, "INFO", None, TIMEOUT)
        assert not len(connection.answers), "nothing waits for an answer any more"


# --- TLS -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["false", "true", "auto", '"300ms"'])
def test_tls_begins_as_the_server_wants_it(first: str, tmp_path: Path) -> None:
    """And a client with a certificate."""
    certs = make_certificates(tmp_path / "tls")
    config = certs.verifying.replace("}", f"  handshake_first: {first}\n}}")
    files = {"tls_ca": str(certs.ca), "tls_cert": str(certs.cert), "tls_key": str(certs.key)}
    with NatsServer(tmp_path / "n", config=config, jetstream=None) as server:
        for handshake_first in {"false": (False,), "true": (True,)}.get(first, (False, True)):
            with opened(server.url, tls_handshake_first=handshake_first, **files) as connection:
                assert echoes(connection)
                got: list[Frame] = []
                connection.subscribe("large", got.append, TIMEOUT)
                for _ in range(8):
                    connection.publish("large", bytes(1_000_000))
                until(connection, lambda: len(got) == 8)  # noqa: B023
                assert server.ask("connz")["connections"][0]["tls_version"] == "1.3"


# --- servers -------------------------------------------------------------------------------------------------------


def test_dead_members_of_a_list_are_passed_over(nats_server: NatsServer) -> None:
    """One that refuses, one that says nothing, one that is no NATS server, one without a name."""
    with ExitStack() as ends:
        silent = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        web = ends.enter_context(socket.create_server(("127.0.0.1", 0)))

        def answer() -> None:
            peer, _ = web.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        dead = [f"nats://127.0.0.1:{lasting_port()}", "nats://no.such.host.invalid"]
        dead += [f"nats://127.0.0.1:{s.getsockname()[1]}" for s in (silent, web)]
        with opened(*dead, nats_server.url, connect_timeout=TIMEOUT) as connection:
            assert echoes(connection)


def test_who_cannot_connect_hears_what_became_of_each_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, closed = silent.getsockname()[1], lasting_port()
        with pytest.raises(Unavailable) as refused, opened(f"nats://127.0.0.1:{closed}", f"127.0.0.1:{port}", **SOON):
            pass
    text = str(refused.value)
    assert f"127.0.0.1:{closed}: " in text
    assert "Connection refused" in text
    assert f"127.0.0.1:{port}: takes the connection and says nothing" in text
    assert "does not greet as a NATS server does" in text


def test_a_server_is_reached_by_its_address_of_ipv6(nats_server: NatsServer) -> None:
    with Proxy(nats_server.url, host="::1") as proxy, opened(proxy.url) as connection:
        assert echoes(connection)
        proxy.cut()
        connection.drive(TIMEOUT, lambda: not connection.up)
        until(connection, lambda: connection.up)
        assert echoes(connection)


def test_a_server_that_is_away_is_found_again_and_subscriptions_with_it(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "n") as server, opened(server.url) as connection:
        got: list[Frame] = []
        connection.subscribe("a", got.append, TIMEOUT)
        for _ in range(3):
            server.kill()
            until(connection, lambda: not connection.up)
            with pytest.raises(Unavailable):
                connection.publish("a", b"")
            server.start()
            until(connection, lambda: connection.up)
            connection.publish("a", b"")
            connection.ping(TIMEOUT)
        assert len(got) == 3


def test_a_lame_duck_is_left_for_the_server_that_its_cluster_announces(tmp_path: Path) -> None:
    route = lasting_port()
    duck = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    first = f'cluster {{ name: c, listen: "127.0.0.1:{route}" }}\n{duck}'
    second = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:{route}"] }}\n'
    with (
        NatsServer(tmp_path / "a", name="a", config=first, jetstream=None) as a,
        NatsServer(tmp_path / "b", name="b", config=second, jetstream=None) as b,
        opened(a.url) as connection,
    ):
        until(connection, lambda: f"port={b.port}," in str(connection.driver.servers.servers))
        os.kill(a.pid, signal.SIGUSR2)
        until(connection, lambda: connection.up and connection.info.name == "b")
        assert echoes(connection)


@pytest.mark.parametrize("fault", [Proxy.cut, Proxy.reset], ids=["cut", "reset"])
def test_a_way_that_breaks_is_gone_again(nats_server: NatsServer, fault: Callable[[Proxy], None]) -> None:
    with Proxy(nats_server.url) as proxy, opened(proxy.url) as connection:
        for _ in range(5):
            fault(proxy)
            connection.drive(TIMEOUT, lambda: not connection.up)
            assert not connection.up
            until(connection, lambda: connection.up)
        assert echoes(connection)


@pytest.mark.own_server
def test_attempts_that_did_not_come_about_are_closed_at_once(nats_server: NatsServer) -> None:
    """Also while nothing is collected: a server that comes and goes must not cost a socket each time."""
    gc.disable()
    try:
        with opened(nats_server.url) as connection:
            nats_server.kill()
            with socket.create_server(("127.0.0.1", nats_server.port)) as impostor:
                impostor.setblocking(False)
                for _ in range(3):
                    until(connection, lambda: readable(impostor))
                    peer, _ = impostor.accept()
                    with peer:
                        peer.shutdown(socket.SHUT_WR)  # instead of a greeting
                        until(connection, lambda: readable(peer))  # noqa: B023
                        assert peer.recv(4_096) == b""
            nats_server.start()
            until(connection, lambda: connection.up)
    finally:
        gc.enable()


def readable(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0)[0])


@pytest.mark.own_server
def test_what_must_not_arrive_any_more_ends_a_connection_and_what_is_asked_over_it_does_not(
    nats_server: NatsServer,
) -> None:
    frame = b"PUB a 1\r\nx\r\n"
    with opened(nats_server.url) as connection:
        lost = connection.loss()
        connection.write(PublishFrames([frame], len(frame)))
        connection.ping(TIMEOUT)
        nats_server.pause()
        try:
            while not connection.unwritten:
                connection.publish("asked", bytes(1_000_000))
            connection.driver.abort_unsent("over")
            assert not lost()
            connection.write(PublishFrames([frame], len(frame)))
            connection.driver.abort_unsent("over")
            assert lost()
        finally:
            nats_server.resume()


# --- what is left behind -------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def sockets() -> set[str]:
    """Those that this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.lexists(link) and "socket" in os.readlink(link)}


def _open_and_close(url: str, times: int) -> None:
    with opened(url) as connection:
        assert echoes(connection)
    before = descriptors(), threading.active_count()
    for _ in range(times):
        with opened(url):
            assert (descriptors(), threading.active_count()) == (before[0] + 1, before[1])
    assert (descriptors(), threading.active_count()) == before


def test_connections_leave_neither_descriptors_nor_threads(nats_server: NatsServer) -> None:
    alone(_open_and_close, nats_server.url, 1000)


def _fork(url: str) -> None:
    before = sockets()
    with opened(url) as connection, ThreadPoolExecutor(1) as threads:
        (mine,) = sockets() - before
        entered, forked = threading.Event(), threading.Event()

        def callback(_: Frame) -> None:
            entered.set()
            forked.wait(TIMEOUT)

        connection.subscribe("a", callback, TIMEOUT)
        connection.publish("a", b"")
        driving = threads.submit(connection.drive, TIMEOUT, entered.is_set)
        assert entered.wait(TIMEOUT)
        ours, theirs = get_context("fork").Pipe()

        def child() -> None:
            connection.drive(0)
            theirs.send((connection.closed, mine in sockets()))
            connection.close()

        process = get_context("fork").Process(target=child)
        process.start()
        assert ours.poll(TIMEOUT), "it does not wait for a thread that it does not have"
        assert ours.recv() == (True, False)
        process.join(TIMEOUT)
        forked.set()
        driving.result(TIMEOUT)
        assert echoes(connection), "the parent's goes on"


def test_a_fork_inherits_nothing(nats_server: NatsServer) -> None:
    """Not a turn of another thread, either."""
    alone(_fork, nats_server.url)

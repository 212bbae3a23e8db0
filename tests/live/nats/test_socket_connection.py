"""A connection that its thread drives, with a real server: logins, lists of servers, TLS, what a fork inherits."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import NoResponders, Unavailable
from mama_spark.nats import NatsSettings
from mama_spark.nats.protocol.frames import PublishFrames
from mama_spark.nats.protocol.parser import Frame
from mama_spark.nats.read.tail import Asked
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.memory import alone
from tests.support.nats.connections import OpenConnection, connected
from tests.support.nats.nats_servers import make_certificates
from tests.support.ports import lasting_port
from tests.support.proxy import Proxy


def settings(*urls: str, **options: Any) -> NatsSettings:
    return NatsSettings(urls, **options)


def to(server: socket.socket) -> OpenConnection:
    """A connection that nobody has driven yet."""
    return OpenConnection(settings(f"nats://127.0.0.1:{server.getsockname()[1]}"))


@contextmanager
def greeted() -> Iterator[tuple[OpenConnection, socket.socket]]:
    """A connection, and its other end, which has greeted as a server does and reads nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as server, closing(to(server)) as connection:
        connection.drive(0)
        peer, _ = server.accept()
        with peer:
            peer.settimeout(TIMEOUT)
            peer.sendall(b"INFO {}\r\nPONG\r\n")
            connection.until(lambda: connection.up)
            yield connection, peer


def test_requests_are_answered_refused_or_nobodys(nats_server: NatsServer) -> None:
    with connected(settings(nats_server.url)) as connection:
        assert connection.echoes()
        answer = connection.requests.request("$JS.API.INFO", b"", TIMEOUT)
        assert answer is not None
        assert b"account_info_response" in answer.payload
        with pytest.raises(NoResponders):
            connection.requests.request("nobody", b"", TIMEOUT)
        connection.subscribe("silent", lambda _: None, TIMEOUT)
        with pytest.raises(Unavailable, match=r"no answer to silent within 0\.05 s"):
            connection.requests.request("silent", b"", 0.05)


def test_threads_that_share_a_connection_take_turns_and_none_waits_for_another(nats_server: NatsServer) -> None:
    """Each gets the answers to its own requests, also if another one reads them; one comes behind all others."""
    with connected(settings(nats_server.url)) as connection, ThreadPoolExecutor(5) as threads:
        held: list[bytes] = []
        connection.subscribe("held", lambda frame: held.append(frame.reply or b""), TIMEOUT)
        connection.subscribe("echo.*", lambda f: connection.publish((f.reply or b"").decode(), f.payload), TIMEOUT)
        waiting = threads.submit(connection.requests.request, "held", b"", TIMEOUT)
        eventually(lambda: held, "the request is there")

        def ask(number: int) -> bool:
            wanted = b"%d" % number * 1000
            answer = connection.requests.request(f"echo.{number}", wanted, TIMEOUT)
            return answer is not None and answer.payload == wanted

        assert all(threads.map(ask, range(400)))
        assert not waiting.done()
        connection.publish(held[0].decode(), b"at last")
        answer = waiting.result(TIMEOUT)
        assert answer is not None
        assert answer.payload == b"at last"


def test_a_request_that_is_not_waited_for_ends_with_its_time_or_its_connection() -> None:
    with greeted() as (connection, _):
        late, lost = Asked(connection, "silent", None, 0.0), Asked(connection, "silent", None, TIMEOUT)
        with pytest.raises(Unavailable, match=r"no answer to \$JS.API.silent"):
            late.answer()
        assert lost.answer() is None
        connection.close()
        with pytest.raises(Unavailable):
            lost.answer()
        with pytest.raises(Unavailable, match="not connected"):
            Asked(connection, "INFO", None, TIMEOUT)
        assert not len(connection.answers), "nothing waits for an answer any more"


@pytest.mark.parametrize("first", ["choice", "false", "true", "auto", '"300ms"'])
def test_tls_begins_as_the_server_wants_it(first: str, tmp_path: Path) -> None:
    """And a client with a certificate; also where the server leaves TLS to its clients."""
    certs = make_certificates(tmp_path / "tls")
    config = certs.verifying.replace("}", f"  handshake_first: {first}\n}}")
    if first == "choice":
        config = f"{certs.verifying}\nallow_non_tls: true"
    files = {"tls_ca": str(certs.ca), "tls_cert": str(certs.cert), "tls_key": str(certs.key)}
    with NatsServer(tmp_path / "n", config=config, jetstream=None) as server:
        for handshake_first in {"auto": (False, True), '"300ms"': (False, True), "true": (True,)}.get(first, (False,)):
            with connected(settings(server.url, tls_handshake_first=handshake_first, **files)) as connection:
                assert connection.echoes()
                got: list[Frame] = []
                connection.subscribe("large", got.append, TIMEOUT)
                for _ in range(8):
                    connection.publish("large", bytes(1_000_000))
                connection.until(lambda: len(got) == 8)  # noqa: B023
                assert server.ask("connz")["connections"][0]["tls_version"] == "1.3"


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
        with connected(settings(*dead, nats_server.url, connect_timeout=TIMEOUT)) as connection:
            assert connection.echoes()


def test_who_cannot_connect_hears_what_became_of_each_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, closed = silent.getsockname()[1], lasting_port()
        servers = settings(f"nats://127.0.0.1:{closed}", f"127.0.0.1:{port}", connect_timeout=0.3)
        with pytest.raises(Unavailable) as refused:
            OpenConnection(servers).open()
    text = str(refused.value)
    assert f"127.0.0.1:{closed}: " in text
    assert "Connection refused" in text
    assert f"127.0.0.1:{port}: takes the connection and says nothing" in text
    assert "does not greet as a NATS server does" in text
    assert "the limit is option connectTimeout; waitTimeout begins when messages are sent" in text


@pytest.mark.parametrize("way", ["cut", "reset", "IPv6", pytest.param("killed", marks=pytest.mark.own_server)])
def test_a_connection_that_breaks_is_made_again_and_its_subscriptions_with_it(
    nats_server: NatsServer, way: str
) -> None:
    with Proxy(nats_server.url, host="::1" if way == "IPv6" else "127.0.0.1") as proxy:
        breaks = {"reset": proxy.reset, "killed": nats_server.kill}.get(way, proxy.cut)
        with connected(settings(nats_server.url if way == "killed" else proxy.url)) as connection:
            got: list[Frame] = []
            connection.subscribe("a", got.append, TIMEOUT)
            for _ in range(3):
                breaks()
                connection.drive(TIMEOUT, lambda: not connection.up)
                with pytest.raises(Unavailable, match="not connected"):
                    connection.publish("a", b"")
                if way == "killed":
                    nats_server.start()
                connection.until(lambda: connection.up)
                connection.publish("a", b"")
                connection.ping(TIMEOUT)
            assert len(got) == 3


def test_attempts_that_did_not_come_about_are_closed_at_once() -> None:
    """Also while nothing is collected: a server that comes and goes must not cost a socket each time."""
    gc.disable()
    try:
        with socket.create_server(("127.0.0.1", 0)) as impostor, closing(to(impostor)) as connection:
            for _ in range(3):
                connection.until(lambda: readable(impostor))
                peer, _ = impostor.accept()
                with peer:
                    peer.shutdown(socket.SHUT_WR)  # instead of a greeting
                    connection.until(lambda: readable(peer))  # noqa: B023
                    assert peer.recv(4_096) == b""
    finally:
        gc.enable()


def readable(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0)[0])


def test_what_must_not_arrive_any_more_ends_a_connection_and_what_is_asked_over_it_does_not() -> None:
    frame = b"PUB a 1\r\nx\r\n"
    with greeted() as (connection, peer):
        lost, came, sock = connection.loss(), b"", connection.driver._socket
        assert sock is not None
        connection.write(PublishFrames([frame], len(frame)))
        while frame not in came:
            came += peer.recv(4_096)
        eventually(lambda: not sock.unsent, "its arrival is confirmed")
        while not connection.unwritten:
            connection.publish("asked", bytes(1_000_000))
        connection.driver.abort_unsent("over")
        assert not lost()
        connection.write(PublishFrames([frame], len(frame)))
        connection.driver.abort_unsent("over")
        assert lost()


# --- what is left behind -------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def sockets() -> set[str]:
    """Those that this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.lexists(link) and "socket" in os.readlink(link)}


def _open_and_close(url: str, times: int) -> None:
    with connected(settings(url)) as connection:
        assert connection.echoes()
    before = descriptors(), threading.active_count()
    for _ in range(times):
        with connected(settings(url)):
            assert (descriptors(), threading.active_count()) == (before[0] + 1, before[1])
    assert (descriptors(), threading.active_count()) == before


def test_connections_leave_neither_descriptors_nor_threads(nats_server: NatsServer) -> None:
    alone(_open_and_close, nats_server.url, 1000)


def _fork(url: str) -> None:
    before = sockets()
    with connected(settings(url)) as connection, ThreadPoolExecutor(1) as threads:
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
        assert connection.echoes(), "the parent's goes on"


def test_a_fork_inherits_nothing(nats_server: NatsServer) -> None:
    """Not a turn of another thread, either."""
    alone(_fork, nats_server.url)

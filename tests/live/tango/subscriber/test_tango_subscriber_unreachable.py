"""Subscriptions at servers that do not run yet, do not answer, or are no Tango servers (TG-21, TG-30, TG-45)."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.errors import ServerAway
from mama_spark.testing.waiting import until

from tests.support.ports import lasting_port
from tests.support.tango.tango import FAST
from tests.support.tango.tango_subscriptions import Watch, reasons
from tests.support.tango_processes.servers import TIMEOUT, TangoDatabase, TangoServer


@pytest.mark.spec("TG-30")
def test_a_subscription_connects_when_its_server_starts(tmp_path: Path) -> None:
    """No exception is raised, an ERROR is delivered each period, and the subscription connects when the server runs."""
    server = TangoServer(tmp_path / "server", port=lasting_port())
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        modes = (EventSubMode.STATELESS, EventSubMode.ASYNC, EventSubMode.ASYNC_READ)
        found = [subscriber.subscribe(server.address(), "long", mode=mode) for mode in modes]
        for subscription in found:
            watch.until(lambda s=subscription: len(watch.of(Kind.ERROR, s)) >= 3)  # type: ignore[misc]
            assert subscription.state in (SubscriptionState.POSTPONED, SubscriptionState.NEGOTIATING)
            assert subscription.topic is None
        assert reasons(watch.of(Kind.ERROR)) == {"API_CantConnectToDevice"}
        with server:
            for subscription, mode in zip(found, modes, strict=True):
                watch.until(
                    lambda s=subscription: watch.of(Kind.EVENT, s),  # type: ignore[misc]
                    lambda: server.push("long", 5),
                )
                watch.until(lambda s=subscription, m=mode: bool(watch.of(Kind.INITIAL, s)) is m.reads)  # type: ignore[misc]
                until(lambda s=subscription: s.state is SubscriptionState.CONNECTED)  # type: ignore[misc]


@pytest.mark.thorough
@pytest.mark.spec("TG-30")
def test_a_subscription_connects_when_its_database_starts(tmp_path: Path) -> None:
    with TangoSubscriber(f"127.0.0.1:{(port := lasting_port())}", timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        subscriber.subscribe("test/lab/1", "long", mode=EventSubMode.ASYNC_READ)
        watch.wait(Kind.ERROR, 2)
        with TangoDatabase(tmp_path / "db", port=port) as database:
            watch.fresh()
            watch.wait(Kind.ERROR)
            with TangoServer(tmp_path / "server", database=database):
                watch.wait(Kind.INITIAL)


@pytest.mark.spec("TG-21")
def test_in_the_modes_that_raise_an_unreachable_server_is_an_error_and_no_event(tmp_path: Path) -> None:
    with TangoSubscriber(timeouts=FAST) as subscriber:
        came: list[SubscriptionEvent] = []
        for mode in (EventSubMode.SYNC, EventSubMode.SYNC_READ):
            with pytest.raises(ServerAway):
                subscriber.subscribe(
                    f"tango://127.0.0.1:{lasting_port()}/a/b/c#dbase=no", "x", mode=mode, callback=came.append
                )
        assert (subscriber.subscriptions, came) == ([], [])


@pytest.mark.spec("TG-38")
def test_a_subscription_that_never_connected_can_be_cancelled(tmp_path: Path) -> None:
    with TangoSubscriber(timeouts=FAST) as subscriber:
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(
            f"tango://127.0.0.1:{lasting_port()}/a/b/c#dbase=no", "x", mode=EventSubMode.STATELESS
        )
        watch.wait(Kind.ERROR, 2)
        subscription.unsubscribe()
        assert subscription.state is SubscriptionState.CANCELLED
        assert repr(subscriber).startswith(
            "<TangoSubscriber <EventConsumer open, <SubscriptionMachine none, 0 channels>"
        )


@pytest.mark.spec("TG-45")
def test_a_server_that_never_answers_does_not_block_closing(tmp_path: Path) -> None:
    """The port accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with TangoSubscriber(timeouts=FAST, timeout=0.2) as subscriber:
            watch = Watch(subscriber)
            subscriber.subscribe(f"tango://127.0.0.1:{port}/a/b/c#dbase=no", "x", mode=EventSubMode.ASYNC)
            assert reasons(watch.wait(Kind.ERROR, 2)) == {"API_DeviceTimedOut"}


@pytest.mark.spec("TG-45")
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"GIOP\1\2\1\1" + b"\xff" * 40])
def test_a_server_that_is_no_tango_server_is_a_repeated_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
            watch = Watch(subscriber)
            address = f"tango://127.0.0.1:{listener.getsockname()[1]}/a/b/c#dbase=no"
            subscriber.subscribe(address, "x", mode=EventSubMode.ASYNC)
            watch.wait(Kind.ERROR, 2)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)

"""A server, or a process that publishes, stands still (SIGSTOP) for longer than every deadline, and goes on.

Here the deadlines are short; the slow test has those that users have, and ten minutes.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.publishing.batch_config import OnOutage
from mama_spark.testing.waiting import eventually

from tests.support.fault_driver import Driver, fresh_message_gets_through
from tests.support.nats.nats_servers import Admin
from tests.support.proxy import Proxy

#: The server gives up a client that does not answer after a second or two; by default after some six minutes.
IMPATIENT = 'ping_interval: "500ms"\nping_max: 2\n'
PROGRAM = """
import json, sys
from mama_spark.contracts import standstill
from mama_spark.testing.waiting import eventually
from tests.support.fault_driver import Driver

url, options, scale = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
standstill.MAX_OVERRUN *= scale
standstill.MAX_STEP *= scale
with Driver(url, ack_mode="message", **options) as driver:
    driver.begin(["s.a"], 500)
    print("begun", flush=True)
    for line in iter(sys.stdin.readline, "end\\n"):
        driver.put(["s.a"], 500)
        eventually(lambda: driver.counters.sends >= driver.sent, "it is sent")
        print("sent", flush=True)
    driver.drain()
    print(json.dumps({"events": driver.events(), "reasons": driver.reasons[:3]}), flush=True)
"""


class PublishingProcess:
    """Publishes 500 messages when it has started, and again whenever it is asked to.

    :param scale: of the times by which it recognises that it stood still
    """

    def __init__(self, url: str, scale: float = 1.0, **options: Any) -> None:
        command = [sys.executable, "-c", PROGRAM, url, json.dumps(options), str(scale)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "begun"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def publish(self) -> None:
        """Returns when it is sent."""
        self._say("more")
        assert self._line() == "sent"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def result(self) -> dict[str, Any]:
        """Events of all messages, and reasons of some that failed."""
        self._say("end")
        found: dict[str, Any] = json.loads(self._line())
        return found

    def __enter__(self) -> PublishingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(60)


def make_stream(server: NatsServer) -> None:
    with Admin(server.url) as admin:
        admin.create_stream("S", ["s.>"])


def stored_once(server: NatsServer, messages: int) -> None:
    with Admin(server.url) as admin:
        payloads = [message.payload for message in admin.messages("S")]
    assert len(payloads) == len(set(payloads)) == messages


def clients(server: NatsServer) -> int:
    return len(server.ask("connz")["connections"])


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", config=IMPATIENT) as server:
        make_stream(server)
        yield server


@pytest.mark.own_server
def test_a_process_that_stood_still_with_messages_on_the_way_goes_on(impatient: NatsServer) -> None:
    """They did not arrive, it was not there to send them again, and the server has given it up."""
    with (
        Proxy(impatient.url) as proxy,
        PublishingProcess(proxy.url, 0.1, wait_timeout=60.0, deadline=1.5) as process,
    ):
        connected = clients(impatient)
        proxy.silence()
        process.publish()
        process.stop()
        eventually(lambda: clients(impatient) < connected, "the server gives the client up, after a second or two")
        proxy.cut()
        proxy.speak()
        process.resume()
        process.publish()
        assert process.result() == {"events": {"acked": 1_500}, "reasons": []}
    stored_once(impatient, 1_500)


@pytest.mark.own_server
def test_a_server_that_stood_still_is_waited_for_beyond_every_deadline(
    impatient: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``onUnavailable=wait``; else the task fails, as with any outage."""
    caplog.set_level(logging.WARNING, "mama_spark")
    options: dict[str, Any] = {"wait_timeout": 0.3, "deadline": 1.0, "ack_mode": "message"}
    with Driver(impatient.url, on_outage=OnOutage.WAIT, **options) as driver:
        publisher = driver.publisher
        assert publisher is not None
        driver.begin(["s.a"], 500)
        impatient.pause()
        driver.put(["s.a"], 2_000)
        eventually(lambda: publisher.outage_cause, "the outage is noticed")
        paused = time.monotonic()
        eventually(lambda: time.monotonic() > paused + 3, "all deadlines have passed, the server's too")
        impatient.resume()
        driver.drain()
        assert driver.events() == {"acked": 2_500}, driver.reasons[:3]
    stored_once(impatient, 2_500)
    fresh_message_gets_through(impatient.url, "s.new")
    assert any("messages are acknowledged again" in record.getMessage() for record in caplog.records)

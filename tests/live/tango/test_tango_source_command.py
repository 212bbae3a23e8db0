"""``mama tango-source`` serves a log to a PyTango client, across restarts of source, client and broker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
import pyarrow as pa
import pytest
import zmq
from mama_spark.cli.main import parse
from mama_spark.console.signals import StopEvent
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.bridge import RecordCodec
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.commands import tango_source
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.idl.negotiation import SubscriberInfo
from mama_spark.tango.log.records import RecordKind
from mama_spark.tango.source import replay_service
from mama_spark.tango.types import AttributeValue, EventType
from mama_spark.testing.waiting import eventually, until

from tests.support.nats.nats_log import record_log
from tests.support.ports import lasting_port
from tests.support.tango.records import encode_one
from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.servers import BEAT, TIMEOUT, DeviceProbe

DEVICE = "lab/cell/1"
ADMIN, CHANGES = "dserver/mama/source", ("temperature", "CHANGE")
MICROS = 1_700_000_000_000_000


class Command:
    """The command in a thread of this process, with a position file and a port of its own that stay over restarts."""

    def __init__(self, folder: Path, log: str, *more: str) -> None:
        self.port, self.position = lasting_port(), folder / "position.json"
        self._log, self._more = log, more
        self.lines: list[str] = []
        self._stop = StopEvent()
        self._ended: Future[int] = Future()

    @contextmanager
    def _stopping(self) -> Iterator[StopEvent]:
        yield self._stop

    def words(self, *more: str) -> list[str]:
        words = ["tango-source", self._log, "--bind", f"127.0.0.1:{self.port}"]
        return [*words, "--heartbeat", f"{BEAT}s", "--position", str(self.position), *self._more, *more]

    def start(self, *more: str) -> None:
        self.lines, self._stop, self._ended = [], StopEvent(), Future()
        threading.Thread(target=self._run, args=(self._ended, self.words(*more)), daemon=True).start()
        self.wait_line("ready:")

    def _run(self, ended: Future[int], words: list[str]) -> None:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tango_source, "stop_on_signals", self._stopping)
                patch.setattr(tango_source, "say_as", lambda json: self.lines.append)
                patch.setattr(tango_source, "print_error", self.lines.append)
                args = parse(words)
                ended.set_result(args.run(args))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            ended.set_exception(error)

    @property
    def running(self) -> bool:
        return not self._ended.done()

    def wait_line(self, text: str) -> None:
        eventually(lambda: any(text in line for line in self.lines) or not self.running, text)
        if not any(text in line for line in self.lines):
            self._ended.result()
            raise AssertionError(self.lines)

    def end(self) -> int:
        """Its exit code."""
        self._stop.set()
        return self._ended.result(TIMEOUT)

    @property
    def address(self) -> str:
        return f"tango://127.0.0.1:{self.port}/{DEVICE}#dbase=no"


class CommandProcess:
    """The command in a process of its own."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._command, self._said = command, folder / "said.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mama_spark.cli", *self._command.words(*more)], stdout=said, stderr=said
            )
        ended = self._process.poll
        eventually(lambda: "ready:" in self._said.read_text() or ended() is not None, "ready")
        assert ended() is None, self._said.read_text()

    def end(self, how: signal.Signals) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(how)
        return self._process.wait(TIMEOUT)


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[RecordLog]:
    with record_log(nats_server.url, "TANGO") as log:
        yield log


@pytest.fixture
def command(nats_server: NatsServer, tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path, f"{nats_server.url}/TANGO")
    yield made
    made._stop.set()
    eventually(lambda: made._ended.done() or not made.lines, "the command has ended")


@pytest.fixture
def process(command: Command, tmp_path: Path) -> Iterator[CommandProcess]:
    made = CommandProcess(command, tmp_path)
    yield made
    if made._process is not None and made._process.poll() is None:
        made.end(signal.SIGKILL)


def append(log: RecordLog, values: Any, *what: Any, **columns: Any) -> int:
    """Encode rows as the sink does."""
    return log.append(rows(values, *what, **columns))


def rows(values: Any, attribute: str = "temperature", first: int = 0, **columns: Any) -> MessageBatch:
    """The records of these values."""
    n = len(values)
    named = {
        "device": [DEVICE] * n, "attribute": [attribute] * n, "value": pa.array(values),
        "time": pa.array([MICROS + first + i for i in range(n)], pa.timestamp("us", "UTC")), **columns,
    }  # fmt: skip
    made = RecordCodec("lab", "tango").encode(pa.RecordBatch.from_pydict(named))
    assert not made.bad
    return MessageBatch(made.topics, made.payloads)


def listening(command: Command) -> int:
    """Clients of the temperature in the position file."""
    wanted = orjson.loads(command.position.read_bytes())["wanted"]
    return sum(n for device, attribute, event, n, _ in wanted if (device, attribute, event) == (DEVICE, *CHANGES))


class Listener:
    """A client that negotiates change events of the temperature, and subscribes its ZeroMQ socket.

    :param between: called between both
    """

    def __init__(
        self, command: Command, between: Callable[[], None] = lambda: None, times: int = 1, slow: bool = False,
        event: EventType = EventType.CHANGE,
    ) -> None:  # fmt: skip
        with open_device(parse_device(command.address).sibling(ADMIN), timeout=TIMEOUT) as admin:
            told = admin.subscribe(SubscriberInfo(DEVICE, "temperature", event))
        assert told.topic is not None
        between()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        if slow:  # what it has not read waits in the source
            self._socket.setsockopt(zmq.RCVHWM, 1)
            self._socket.setsockopt(zmq.RCVBUF, 4096)
        self._socket.setsockopt(zmq.SUBSCRIBE, told.topic.encode())
        self._socket.connect(told.endpoints[0].event)
        for _ in range(times - 1):  # as cppTango after a reconnection
            self._socket.setsockopt(zmq.SUBSCRIBE, told.topic.encode())
        self._last = 0

    def value(self, patience: int = int(TIMEOUT * 1000)) -> float:
        """Of the next event; the one that comes twice counts once.

        :raises zmq.Again: none came for so many milliseconds
        """
        self._socket.setsockopt(zmq.RCVTIMEO, patience)
        while True:
            event = decode(self._socket.recv_multipart())
            assert isinstance(event, Event)
            if event.call.ctr != self._last:
                self._last = event.call.ctr
                assert isinstance(event.data, AttributeValue)
                return float(np.asarray(event.data.read)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.destroy(linger=0)


def seen(probe: DeviceProbe, number: int) -> list[float]:
    return [event["value"]["value"] for event in probe.events(number) if not event["err"]]


@pytest.mark.spec("TG-01", "TG-22", "TG-23", "TG-35")
def test_a_real_client_gets_the_rows_in_order_with_quality_and_time(
    log: RecordLog, command: Command, process: CommandProcess, probe: DeviceProbe
) -> None:
    append(log, [1.0, 2.0])
    process.start()
    numbers = [probe.subscribe(command.address, "temperature", event) for event in ("change", "user_event")]
    assert [probe.wait_events(n, 1)[0]["value"]["value"] for n in numbers] == [2.0] * 2  # a readable last value
    words, values, marks = ["VALID", "ALARM", "WARNING", "CHANGING"], [10.0 + i for i in range(40)], count()
    until(lambda: all(len(probe.events(n)) > 1 for n in numbers), lambda: append(log, [-1.0 - next(marks)]))
    append(log, values, quality=[words[i % 4] for i in range(40)])
    for number in numbers:
        probe.wait_event(number, lambda e: e["value"]["value"] == values[-1])
        events = [e["value"] for e in probe.events(number) if not e["err"] and e["value"]["value"] >= 10]
        assert [(e["value"], e["quality"].removeprefix("ATTR_"), e["time"]) for e in events] == [
            (value, words[i % 4], (MICROS + i) * 1000) for i, value in enumerate(values)
        ]
    append(log, pa.array(["MOVING"]), "State")  # which appears while it runs
    until(lambda: probe.call("read", device=command.address, attribute="State")["value"] == "MOVING")
    assert process.end(signal.SIGINT) == 130


@pytest.mark.thorough
@pytest.mark.spec("TG-40-TG-42")
@pytest.mark.parametrize("release", RELEASES)
def test_a_killed_process_goes_on_where_it_was_and_sends_nothing_twice(
    log: RecordLog, command: Command, process: CommandProcess, tmp_path: Path, release: int
) -> None:
    """The client reconnects by itself, and gets the records that were stored meanwhile."""
    append(log, [0.0])
    process.start()
    with DeviceProbe(tmp_path / "client", release=release) as client:
        number = client.subscribe(command.address, "temperature", "change")
        until(lambda: listening(command) == 1)
        process.end(signal.SIGKILL)
        sent = [float(value) for value in range(1, 5_001)]
        append(log, sent)
        process.start("--hold", f"{TIMEOUT}s")
        client.wait_event(number, lambda e: not e["err"] and e["value"]["value"] == sent[-1])
        assert [value for value in seen(client, number) if value] == sent
    assert process.end(signal.SIGTERM) == 0


def test_an_orderly_end_waits_for_clients_and_serves_again_what_they_did_not_take(
    log: RecordLog, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, size = 100, 10_000  # 8 MB, more than the system takes for a connection
    append(log, [[0.0] * size])
    command.start()

    def position() -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(command.position.read_bytes())
        return found

    def serve(first: int) -> None:
        """Push as many records, and end."""
        until(lambda: listening(command) == 1)
        append(log, [[float(first + i)] * size for i in range(number)])
        eventually(lambda: position()["served"] == first + number, "all were taken")
        command._stop.set()

    with Listener(command, slow=True) as client:
        serve(1)
        assert [client.value() for _ in range(number)] == [float(1 + i) for i in range(number)]
        assert command.end() == 0
    assert position()["written"] == position()["served"] == 1 + number
    command.start("--hold", "0")
    with Listener(command, slow=True):
        monkeypatch.setattr(replay_service, "LINGER", 0.2)
        serve(1 + number)
        assert command.end() == 0
        served = position()["served"]
        again = f"records {served + 1} to {1 + 2 * number} are not counted, and are served again by the next start"
        assert served < 1 + 2 * number
        assert any(again in line for line in command.lines), command.lines
    killed = {**position(), "served": 1 + 2 * number, "written": 150}
    command.position.write_bytes(orjson.dumps(killed))
    command.start("--hold", "0")
    assert any(f"records 151 to {1 + 2 * number} may be lost" in line for line in command.lines), command.lines
    assert command.end() == 0


@pytest.mark.spec("TG-28", "TG-40")
def test_after_restarts_new_records_wait_until_all_clients_have_reached_the_socket(
    log: RecordLog, command: Command
) -> None:
    """One client subscribes twice, and is not taken for two; the other connects long after its negotiation."""
    sent = [4.0, 5.0, 6.0]
    append(log, [0.0])
    command.start()
    with Listener(command), Listener(command):
        until(lambda: listening(command) == 2)
        command.end()
    command.start("--hold", f"{TIMEOUT}s")
    command.wait_line(f"waiting up to {TIMEOUT:g} s for 2 subscriptions to come back")
    assert command.end() == 0
    append(log, sent)
    command.start("--hold", f"{TIMEOUT}s")
    with Listener(command, times=2) as one:

        def nothing_comes() -> None:
            with pytest.raises(zmq.Again):
                one.value(300)

        with Listener(command, nothing_comes) as two:
            assert [one.value() for _ in sent] == [two.value() for _ in sent] == sent


def test_rows_that_clients_missed_are_told_as_not_delivered(log: RecordLog, command: Command) -> None:
    append(log, [0.0])
    command.start()
    with Listener(command), Listener(command):
        until(lambda: listening(command) == 2)
        command.end()
    append(log, [4.0, 5.0, 6.0])
    command.start("--hold", "200ms")
    until(lambda: '"served":4' in command.position.read_text())
    command.end()
    said = "\n".join(command.lines)
    assert "not_delivered: records 2 to 4 to 2 of 2 clients of change events of lab/cell/1/temperature" in said
    assert " 0 messages sent, 6 not_delivered" in command.lines[-1]


def test_periodic_events_are_messages_that_were_sent(
    log: RecordLog, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_service, "REPORT_INTERVAL", 0.0)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[attribute]]\npattern = "*"\nperiod = "10ms"\n')
    append(log, [4.0])
    command.start("--conf-file", str(rules))
    with Listener(command, event=EventType.PERIODIC):
        eventually(lambda: re.search(r" [1-9]\d* messages sent", command.lines[-1]), "a line counts them")
        command.end()
    assert not any("-" in word for line in command.lines for word in re.findall(r"(\S+) messages sent", line))


def test_pushed_records_are_replayed_on_request_and_nobody_else_has_the_position(
    log: RecordLog, command: Command
) -> None:
    append(log, [1.0, 2.0, 3.0])
    command.start()
    args = parse(["tango-source", command._log, "--position", str(command.position)])
    with pytest.raises(Unavailable, match="another source goes on from"):
        args.run(args)
    assert command.end() == 0
    assert "0 records served up to 3" in command.lines[-1]
    command.start("--begin", "2")
    command.wait_line("from record 2 on")
    until(lambda: '"served":3' in command.position.read_text())
    assert command.end() == 0
    assert "2 records served up to 3" in command.lines[-1]


def test_a_log_of_a_recorder_is_refused_and_its_records_among_rows_are_skipped(
    log: RecordLog, command: Command
) -> None:
    """Recorded events are read with ``mamasub``; serving them too would let two systems feed each other."""
    recorded = MessageBatch.of(
        ["tango.recorder", "tango.recorder"], [encode_one(RecordKind.STARTED, 5), encode_one(RecordKind.STOPPED, 6)]
    )
    log.append(recorded)
    with pytest.raises(ConfigError, match=r"the log TANGO holds what a recorder wrote .*, and no rows of mamapub"):
        command.start()
    append(log, [1.0])
    command.start()
    log.append(recorded)
    command.wait_line("also holds what a recorder wrote (mama record), which is not served")
    append(log, [2.0])
    until(lambda: '"served":6' in command.position.read_text())
    assert command.end() == 0
    assert "1 records served up to 6" in command.lines[-1]

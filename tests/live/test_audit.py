"""``mama audit`` of real writes, over NATS and over stored streams of a Malamute broker."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mama_spark.cli.main import main
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog
from mama_spark.flightlog.commit import commit
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.testing.waiting import TIMEOUT, eventually

from tests.support.malamute.broker_process import BrokerHere
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import STREAM, Query, rows

#: The duplicate window, in seconds.
WINDOW = 0.1
PLAIN = {"exactlyOnce": "false"}


class Place:
    """A middleware with one stream, a flight log, and what is done to them.

    :ivar options: of writes, for this middleware
    """

    def __init__(self, url: str, log: Path, name: str, **options: str) -> None:
        self.url, self.log, self.stream, self.options = url, str(log), name, options
        self._bridge = log_bridge(SubscribeOptions.parse({"url": url, "stream": name}), TIMEOUT)
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    def write(self, n: int, **options: str) -> None:
        """A micro-batch of ``n`` rows, with its flight log."""
        report = Query(self.url, {**self.options, **options, "flightLog": self.log}).attempt(rows(0, n))
        assert (report.counts.acked, report.fatal) == (n, None)
        assert report.write_id is not None
        commit(self.log, {}, report.write_id, report.parts)

    @property
    def stored(self) -> RecordLog:
        return self._bridge.log(self.stream)

    def id_of(self, sequence: int) -> str:
        (found,) = self.stored.read(sequence - 1, sequence)
        assert found.headers is not None
        return str(dict(found.headers[0].as_py())[MSG_ID][0])

    def append(self, id_: str | None = None) -> int:
        """Store a message; its sequence."""
        ids = None if id_ is None else [id_]
        return self.stored.append(MessageBatch.of(["once.0"], [b"row 0"], None, ids))

    def append_copy(self, id_: str) -> None:
        """Store a message with an id that the stream has, once it is forgotten."""
        last = self.stored.bounds().last
        eventually(lambda: self.append(id_) > last, "the id is forgotten")


@pytest.fixture
def nats_place(nats_server: NatsServer, tmp_path: Path) -> Iterator[Place]:
    with Admin(nats_server.url) as admin:
        admin.create_stream(STREAM, ["once.>"], duplicate_window=int(WINDOW * 1e9), allow_batched=True)
        place = Place(nats_server.url, tmp_path / "log", STREAM)
        yield place
        place.close()


@pytest.fixture
def malamute_place(tmp_path: Path) -> Iterator[Place]:
    with BrokerHere(tmp_path / "broker", "^(once|MAMA_BATCHES)", f'dedup_window = "{WINDOW:g}s"') as broker:
        place = Place(broker.url, tmp_path / "log", "once", stream="once")
        yield place
        place.close()


@pytest.fixture(params=["nats", "malamute"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the command; its exit code, and what it says."""

    def run(place: Place, *words: str) -> tuple[int, dict[str, Any]]:
        code = main(["audit", place.log, "--url", place.url, "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    return run


Audit = Callable[..., tuple[int, dict[str, Any]]]


def test_what_was_planted_is_found_and_nothing_before(place: Place, audit: Audit) -> None:
    place.write(30, **PLAIN)
    code, found = audit(place, "--foreign")
    assert (code, found["sums"]) == (0, {"content": 30})
    id_ = place.id_of(1)
    place.append_copy(id_)
    place.append(f"{id_[:-1]}7")
    place.append()
    code, found = audit(place)
    assert (code, found["sums"]) == (1, {"content": 30, "copy": 1, "unlogged": 1})
    assert found["examples"]["copy"][0] | {"id": id_, "sequence": 31, "batch_id": 7} == found["examples"]["copy"][0]
    place.stored.trim(3)
    code, found = audit(place, "--batch", "7", "--foreign")
    assert (code, found["sums"]) == (1, {"content": 28, "elsewhere": 1, "unlogged": 1, "foreign": 1, "expired": 1})
    assert audit(place, "--batch", "8")[0] == 2


def test_a_stream_that_was_deleted_and_one_that_was_made_again(
    nats_server: NatsServer, nats_place: Place, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    nats_place.write(3, **PLAIN)
    with Admin(nats_server.url) as admin:
        admin.api(f"STREAM.DELETE.{STREAM}")
        assert main(["audit", nats_place.log, "--url", nats_place.url]) == 2
        assert capsys.readouterr().err == f"mama: there is no stream '{STREAM}'\n"
        admin.create_stream(STREAM, ["once.>"])
    assert audit(nats_place)[1]["sums"] == {"remade": 3}
    nats_place.append()
    code, found = audit(nats_place)
    assert (code, found["sums"]) == (1, {"other": 1, "remade": 2})


@pytest.mark.parametrize(
    ("options", "sums"),
    [
        ({}, {"content": 30}),
        ({**PLAIN, "pack": "lines", "packMaxRows": "10"}, {"content": 3}),
        ({"pack": "lines"}, {"id": 3}),
        ({**PLAIN, "dedup": "false", "ackMode": "message"}, {"place": 30}),
        ({**PLAIN, "dedup": "false", "ackMode": "batch"}, {"counted": 30}),
        ({**PLAIN, "ackMode": "batch"}, {"content": 30}),
    ],
)
def test_what_is_proven_depends_on_the_write(
    nats_place: Place, audit: Audit, options: dict[str, str], sums: dict[str, int]
) -> None:
    nats_place.write(30, **options)
    code, found = audit(nats_place)
    assert (code, found["sums"]) == (0, sums)


@pytest.mark.parametrize("pack", ["off", "lines"])
def test_rows_that_an_attempt_before_had_stored(place: Place, audit: Audit, pack: str) -> None:
    """Of the first attempt the log has nothing: it was killed."""
    query = Query(place.url, {**place.options, "flightLog": place.log, "pack": pack})
    query.attempt(rows(0, 20))
    (Path(place.log) / "parts").rename(Path(place.log).with_name("lost"))
    last = place.stored.bounds().last
    eventually(lambda: place.append("another") > last, "the ids are forgotten")
    place.write(30, pack=pack)
    code, found = audit(place)
    assert (code, found["findings"], found["again"]) == (0, 0, 0), found


def test_messages_that_were_deleted_are_missing_unless_a_limit_may_have_done_it(
    nats_server: NatsServer, nats_place: Place, audit: Audit
) -> None:
    nats_place.write(30, **PLAIN)
    nats_place.stored.delete([5, 6, 5])
    code, found = audit(nats_place)
    assert (code, found["sums"]) == (1, {"content": 28, "missing": 2})
    with Admin(nats_server.url) as admin:
        admin.update_stream(STREAM, max_msgs_per_subject=10)
    code, found = audit(nats_place)
    assert (code, found["sums"]) == (2, {"content": 28, "unsure": 2})


def test_limits_of_a_topic_are_known_where_a_broker_of_malamute_stores_in_jetstream(
    nats_server: NatsServer, tmp_path: Path, audit: Audit
) -> None:
    engine = f'engine = "jetstream"\nservers = "{nats_server.url}"'
    with BrokerHere(tmp_path / "broker", "^once$", "max_per_subject = 2", engine=engine) as broker:
        place = Place(broker.url, tmp_path / "log", "once", stream="once")
        place.write(30, **PLAIN)
        place.append()
        place.append()
        code, found = audit(place)
        place.close()
    assert (code, found["sums"]) == (2, {"content": 4, "expired": 25, "unsure": 1})


def make_again(server: NatsServer) -> None:
    with Admin(server.url) as admin:
        admin.api(f"STREAM.DELETE.{STREAM}")
        admin.create_stream(STREAM, ["once.>"])


def test_copies_are_deleted_after_a_question(
    nats_server: NatsServer,
    nats_place: Place,
    audit: Audit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nats_place.write(30, **PLAIN)
    nats_place.append_copy(nats_place.id_of(4))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def meanwhile(do: Callable[[], object]) -> None:
        """Something happens before the answer."""
        terminal = Terminal()
        monkeypatch.setattr(terminal, "readline", lambda: [do(), "y"][1])
        monkeypatch.setattr("sys.stdin", terminal)

    command = ["audit", nats_place.log, "--url", nats_place.url, "--delete-copies"]
    for stdin, error in (
        (io.StringIO("y\n"), "mama: --delete-copies asks before it deletes; without a terminal, give --yes\n"),
        (Terminal("\n"), f"delete 1 later copies from {STREAM}? [y/N] mama: nothing was deleted\n"),
    ):
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(command) == 2
        assert capsys.readouterr().err == error
    nats_place.append_copy(nats_place.id_of(1))

    meanwhile(lambda: nats_place.stored.delete([1]))
    assert main(command) == 2
    assert "has lost 1 messages since it was read, of which copies are stored" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(command) == 1
    assert f"deleted 1 later copies from {STREAM}" in capsys.readouterr().out
    assert audit(nats_place)[1]["sums"] == {"content": 29, "elsewhere": 1}
    assert nats_place.stored.missing(0, 31) == [(1, 1), (31, 31)]
    nats_place.append_copy(nats_place.id_of(4))
    meanwhile(partial(make_again, nats_server))
    assert main(command) == 2
    assert "was deleted and created again since it was read: audit once more" in capsys.readouterr().err


def test_a_broker_of_malamute_deletes_no_copies(
    malamute_place: Place, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    malamute_place.write(3, **PLAIN)
    malamute_place.append_copy(malamute_place.id_of(1))
    assert main(["audit", malamute_place.log, "--url", malamute_place.url, "--delete-copies", "--yes"]) == 2
    assert "stream 'once': this middleware deletes no single records" in capsys.readouterr().err

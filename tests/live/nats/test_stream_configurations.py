"""Streams of all configurations: published to, read and written again, with what the server holds as the oracle. The
table is that of docs/reference/stream-configurations.md."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, DataLost, MamaError, OptionError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.job import OutcomeCounts
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually

from tests.support.nats import mamasub
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import Query, Row, batches

ACCOUNTS = """
accounts {
  HOME: { jetstream: enabled, users: [{user: home, password: p}], exports: [{service: "in.>"}],
    mappings: { "alias.*": "in.{{wildcard(1)}}", "within.a": "within.b" } }
  GUEST: { jetstream: enabled, users: [{user: guest, password: p}],
    imports: [{service: {account: HOME, subject: "in.>"}, to: "theirs.>"}] }
}
"""
#: Nanoseconds, the shortest that a server takes.
WINDOW = 100_000_000
PACKS = [{}, {"pack": "lines"}, {"pack": "arrow", "packCompression": "zstd"}]
ROWS: list[Row] = [(f"{n % 3}", b"row %d" % n) for n in range(9)]


@dataclass(frozen=True)
class Case:
    """:ivar published, stored: prefix of the topics that rows are published to, and of those that the stream has"""

    name: str
    published: str
    stored: str
    config: dict[str, Any] = field(default_factory=dict)
    user: str = "home"


TRANSFORM = {"src": "taken.>", "dest": "kept.>"}
CASES = {
    "PLAIN": Case("PLAIN", "plain", "plain", {"subjects": ["plain.>"]}),
    "TRANSFORMED": Case("TRANSFORMED", "taken", "kept", {"subjects": ["taken.>"], "subject_transform": TRANSFORM}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), config=ACCOUNTS) as server:
        yield server


def url_of(server: NatsServer, user: str = "home") -> str:
    return server.url.replace("://", f"://{user}:p@")


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Admin]:
    with Admin(url_of(server)) as admin:
        yield admin
        for name in admin.api("STREAM.NAMES")["streams"] or ():
            admin.api(f"STREAM.DELETE.{name}")


def make(admin: Admin, case: Case) -> None:
    admin.create_stream(case.name, allow_batched=True, duplicate_window=WINDOW, **case.config)


def query(server: NatsServer, case: Case, **options: str) -> Query:
    return Query(url_of(server, case.user), {"topicPrefix": case.published, **options}, batch=None)


def read(server: NatsServer, options: dict[str, str]) -> list[Row]:
    return [(row["topic"], row["value"]) for row in mamasub.read(url_of(server), **options)]


def read_on(server: NatsServer, options: dict[str, str], start: Any = None) -> tuple[list[Row], Any]:
    """A micro-batch of a query that begins here, or goes on, and where it ends."""
    query = mamasub.StreamQuery(url_of(server), start, **options)
    return [(row["topic"], row["value"]) for row in query.batch()], query.offset


def stored_up_to(admin: Admin, name: str, last: int) -> None:
    eventually(lambda: admin.info(name)["state"]["last_seq"] == last, f"{name} has sequence {last}")


# --- the table of the reference ---------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "stream-configurations.md"
MODES: list[dict[str, str]] = [
    {"ackMode": "auto"},  # message by message, with ids
    {"ackMode": "batch", "dedup": "false"},
    {"order": "partition"},
    {"ackMode": "auto", "dedup": "false"},
    {"ackMode": "none", "dedup": "false"},  # stores what the one before stored
]
_numbers = count()


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


class Line:
    """One line of the table.

    :ivar published, stored: prefix of the topics that rows have, and of those that the stream has
    :ivar header: of the first row
    """

    def __init__(self, cells: list[str]) -> None:
        self.title, topics, self.mamapub, self.once, self.mamasub = cells
        given = codes(self.title)
        self.config: dict[str, Any] = next((json.loads(one) for one in given if one.startswith("{")), {})
        self.header = next((tuple(one.split(": ")) for one in given if one.startswith("Nats-")), None)
        self.published, self.stored = (codes(topics)[at].partition(".")[0] for at in (0, -1))
        self.copies = {"mirror", "sources"} & self.config.keys()

    def said(self, mode: dict[str, str]) -> str:
        """What ``mamapub`` does in a mode."""
        usual, *others = self.mamapub.split("; ")
        for other in others:
            modes, _, outcome = other.partition(": ")
            if any(mode.get(name) == value for name, _, value in (one.partition("=") for one in codes(modes))):
                return outcome
        return usual


def lines() -> Iterator[Line]:
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for line in table[1:]:
        yield Line(line.strip("| ").split(" | "))


class Made:
    """The streams of one line: what rows are published to, and what is read."""

    def __init__(self, server: NatsServer, admin: Admin, line: Line) -> None:
        self.admin, self.line, self.name = admin, line, f"S{next(_numbers)}"
        self.url = url_of(server, "guest" if line.published == "theirs" else "home")
        self.origin = f"O{self.name}" if line.copies else self.name
        config: dict[str, Any] = {"allow_batched": True, **line.config}
        self.sealed = bool(config.pop("sealed", False))
        subjects = config.pop("subjects", [] if line.copies else ["in.>"])
        if line.copies:
            admin.create_stream(self.origin, ["in.>"], allow_batched=True, duplicate_window=WINDOW)
        if "mirror" in config:
            del config["allow_batched"]
        else:
            config = {"duplicate_window": WINDOW, **config}
        admin.create_stream(self.name, subjects, **json.loads(json.dumps(config).replace("ORIGIN", self.origin)))
        if self.sealed:
            self.publish({})
            admin.update_stream(self.name, sealed=True)
        self.before = self.last

    def __enter__(self) -> Made:
        return self

    def __exit__(self, *_: object) -> None:
        for name in {self.name, self.origin}:
            self.admin.api(f"STREAM.DELETE.{name}")

    @property
    def last(self) -> int:
        return int(self.admin.info(self.origin)["state"]["last_seq"])

    @property
    def taken(self) -> int:
        """How many messages the server has stored since it was made."""
        return self.last - self.before

    def publish(self, options: dict[str, str]) -> tuple[OutcomeCounts, str]:
        """The outcomes of the rows, and why there are none."""
        batch = next(batches(ROWS))
        if self.line.header is not None:
            name, value = self.line.header
            headers = [[(name, [value])], *[None] * (len(ROWS) - 1)]
            batch = batch.append_column("headers", pa.array(headers, pa.map_(pa.string(), pa.list_(pa.string()))))
        once = Query(self.url, {"topicPrefix": self.line.published, "exactlyOnce": "false", **options}, batch=None)
        once = replace(once, headers=self.line.header is not None)
        try:
            report = once.attempt(iter([batch]))
        except MamaError as e:
            return OutcomeCounts(), str(e)
        return report.counts, report.fatal or ""

    def messages(self) -> dict[int, Row]:
        """What the stream that is read has, one message after the other, by sequence."""
        state = self.admin.info(self.name)["state"]
        found = {}
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            answer = self.admin.api(f"STREAM.MSG.GET.{self.name}", {"seq": sequence})
            if "message" in answer:
                found[sequence] = (answer["message"]["subject"], b64decode(answer["message"].get("data", "")))
        return found

    def wait_for_copies(self) -> None:
        if self.line.copies:
            taken = self.admin.info(self.origin)["state"]["messages"]
            eventually(lambda: self.admin.info(self.name)["state"]["messages"] == taken, "the copy is complete")


@pytest.mark.parametrize("line", list(lines()), ids=lambda line: line.title)
def test_what_the_page_says_of_a_stream_is_what_happens(
    server: NatsServer, admin: Admin, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    acked = 0
    for mode in MODES:
        with Made(server, admin, line) as made:
            acked = held_to_mamapub(made, mode, acked)
            if mode is MODES[-1]:
                if "with a warning" in line.mamapub:
                    assert codes(line.mamapub)[-1] in caplog.text
                held_to_mamasub(server, made, caplog)
    held_to_exactly_once(server, admin, line, {})
    if line.published != line.stored and line.once == "stored once":
        for pack in PACKS[1:]:
            held_to_exactly_once(server, admin, line, pack)


def held_to_mamapub(made: Made, mode: dict[str, str], acked: int) -> int:
    """:param acked: rows of the mode before; returns those of this one"""
    said, (counts, fatal) = made.line.said(mode), made.publish(mode)
    if said.startswith("refused"):
        assert codes(said)[-1] in fatal, mode
        assert not made.taken, mode
        return len(ROWS)
    assert not fatal, mode
    if mode.get("ackMode") == "none":
        assert counts.published + counts.failed == len(ROWS)
        eventually(lambda: made.taken == acked, f"{acked} rows are stored")
        return acked
    assert counts.acked == made.taken, mode
    assert counts.acked + counts.failed == len(ROWS), mode
    assert bool(counts.failed) == said.startswith("rows fail"), (mode, counts.reasons)
    assert all(codes(said)[-1] in reason for reason in counts.reasons), (mode, counts.reasons)
    return counts.acked


def held_to_mamasub(server: NatsServer, made: Made, caplog: pytest.LogCaptureFixture) -> None:
    said, name, topics = made.line.mamasub, {"stream": made.name}, {"topics": f"{made.line.stored}.*"}
    made.wait_for_copies()
    if said.startswith("refused"):
        for way in (name, topics):
            for ask in (read, read_on):
                with pytest.raises(ConfigError, match=codes(said)[-1]):
                    ask(server, way)
        return
    there = made.messages()
    rows, position = read_on(server, name)
    assert rows == read(server, name) == list(there.values())
    if not made.line.copies:
        assert read_on(server, topics)[0] == rows
    one = f"{made.line.stored}.1"
    assert read(server, {**name, "topics": one}) == [row for row in rows if row[0] == one]
    assert made.messages() == there, "reading changes nothing"
    if "with a warning" in said:
        assert codes(said)[-1] in caplog.text
    goes_on(server, made, position)


def goes_on(server: NatsServer, made: Made, position: Any) -> None:
    """A query that has read so far gets all that is stored after it, or an error where some of that is gone."""
    before = made.admin.info(made.name)["state"]["last_seq"]
    made.publish({"ackMode": "auto", "dedup": "false"})
    made.wait_for_copies()
    new = {sequence: row for sequence, row in made.messages().items() if sequence > before}
    options = {"stream": made.name}
    if made.admin.info(made.name)["state"]["last_seq"] > before + len(new):
        with pytest.raises(DataLost, match="records that this query has not read are gone"):
            read_on(server, options, position)
        options["failOnDataLoss"] = "false"
    assert read_on(server, options, position)[0] == list(new.values())


def held_to_exactly_once(server: NatsServer, admin: Admin, line: Line, pack: dict[str, str]) -> None:
    with Made(server, admin, line) as made:
        # another run waits for as long as an acknowledgement may take
        options = {"exactlyOnce": "true", "txnAppId": made.name, "txnVersion": "1", "waitTimeout": "300ms", **pack}
        first, fatal = made.publish(options)
        if fatal:
            assert line.once.startswith("refused"), fatal
            assert codes(line.once)[-1] in fatal
            assert not made.taken
            return
        taken = made.taken
        forget_ids(admin)
        again, fatal = made.publish(options)
        if line.once.startswith("again refused"):
            assert codes(line.once)[-1] in fatal
        else:
            assert (line.once, fatal) == ("stored once", "")
            assert (again.acked, again.duplicates, again.failed) == (first.acked, first.acked, first.failed)
        assert made.taken == taken


def forget_ids(admin: Admin) -> None:
    """Wait until the server has forgotten an id that it got now, and so all that it got before."""
    admin.create_stream("FORGETS", ["forgets"], duplicate_window=WINDOW)
    admin.publish("forgets", Nats_Msg_Id="probe")
    eventually(lambda: "duplicate" not in admin.publish("forgets", Nats_Msg_Id="probe"), "an id is forgotten")
    admin.api("STREAM.DELETE.FORGETS")


# --- what is no row of it ---------------------------------------------------------------------------------------------


def test_a_topic_that_is_mapped_to_another_of_its_stream_is_stored_once(server: NatsServer, admin: Admin) -> None:
    make(admin, case := Case("WITHIN", "within", "within", {"subjects": ["within.>"]}))
    once = query(server, case, txnAppId="job", txnVersion="1")
    for _ in range(2):
        once.attempt([("a", b"moved")])
        forget_ids(admin)
    assert [message.topic for message in admin.messages("WITHIN")] == ["within.b"]


@pytest.mark.parametrize("batch", [None, 7], ids=["batch", "stream"])
@pytest.mark.parametrize(
    "mode", [{}, {"ackMode": "batch"}, {"order": "partition"}, {"ackMode": "batch", "pack": "arrow"}], ids=str
)
def test_what_is_mapped_and_transformed_is_stored_once_in_every_mode(
    server: NatsServer, admin: Admin, mode: dict[str, str], batch: int | None
) -> None:
    config = {"subjects": ["in.>"], "subject_transform": {"src": "in.>", "dest": "out.>"}}
    name = f"M{next(_numbers)}"
    make(admin, case := Case(name, "alias", "out", config))
    options = {"txnAppId": name, "txnVersion": "1"} if batch is None else {"batchesStream": name + "-MARKS"}
    once = replace(query(server, case, **options, **mode), batch=batch)
    for run, known in (("first", 0), ("again", len(ROWS))):
        counts = once.attempt(ROWS, run=run).counts
        assert (counts.acked, counts.duplicates) == (len(ROWS), known)
        forget_ids(admin)
    assert admin.info(name)["state"]["messages"] == (3 if "pack" in mode else len(ROWS))


def test_streams_that_get_their_messages_from_others_are_read_by_topic_when_they_are_named(
    server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    make(admin, case := CASES["PLAIN"])
    query(server, case, exactlyOnce="false").attempt(ROWS)
    origin = {"name": case.name}
    renamed = {**origin, "subject_transforms": [{"src": "plain.>", "dest": "p.>"}]}
    admin.create_stream("MIRROR", [], mirror=origin)
    admin.create_stream("SOURCED", [], sources=[origin])
    admin.create_stream("BOTH", ["own.>"], sources=[renamed])
    prefixes = {"MIRROR": "plain", "SOURCED": "plain", "BOTH": "p"}
    for name, prefix in prefixes.items():
        stored_up_to(admin, name, len(ROWS))
        wanted = sorted((f"{prefix}.1", value) for topic, value in ROWS if topic == "1")
        assert sorted(read(server, {"stream": name, "topics": f"{prefix}.1"})) == wanted
    assert read(server, {"stream": "MIRROR", "topics": "typo.>"}) == []
    assert "stream 'MIRROR', which gets its messages from other streams, holds none on 'typo.>' now" in caplog.text
    assert len(read(server, {"topics": "plain.>"})) == len(ROWS), "mirrors are not read beside their origin"
    for name in prefixes:
        report = query(server, case, exactlyOnce="false", stream=name).attempt(ROWS)
        assert re.search(rf"belongs to stream 'PLAIN', not to '{name}'; correct option stream$", report.fatal or "")
    with pytest.raises(ConfigError, match=r"read by name \(option stream\): BOTH, MIRROR, SOURCED"):
        read(server, {"topics": "p.>"})


def test_all_streams_that_store_a_topic_are_read(server: NatsServer, admin: Admin) -> None:
    """One that takes it, and one that makes it of what it takes."""
    make(admin, CASES["TRANSFORMED"])
    make(admin, keeps := Case("KEEPS", "kept", "kept", {"subjects": ["kept.>"]}))
    for case in (CASES["TRANSFORMED"], keeps):
        query(server, case, exactlyOnce="false").attempt(ROWS)
    wanted = sorted([(f"kept.{topic}", value) for topic, value in ROWS] * 2)
    assert sorted(read(server, {"topics": "kept.>"})) == sorted(read_on(server, {"topics": "kept.>"})[0]) == wanted


def test_what_a_stream_never_stores_is_said(server: NatsServer, admin: Admin) -> None:
    make(admin, CASES["TRANSFORMED"])
    for named in [{}, {"stream": "TRANSFORMED"}]:
        with pytest.raises(ConfigError, match=r"takes taken\.> and stores taken\.> as kept\.> \(subject_transform\)"):
            read(server, {"topics": "taken.>", **named})
    report = query(server, Case("NONE", "nobody", ""), exactlyOnce="false").attempt(ROWS)
    assert "no stream takes topic 'nobody.0'" in (report.fatal or "")


def test_what_a_stream_took_before_its_subjects_were_changed_is_read(server: NatsServer, admin: Admin) -> None:
    make(admin, case := CASES["PLAIN"])
    query(server, case, exactlyOnce="false").attempt(ROWS)
    admin.update_stream(case.name, subjects=["newer.>"])
    assert len(read(server, {"stream": case.name, "topics": "plain.>"})) == len(ROWS)


def test_tasks_are_no_more_than_a_stream_takes_consumers(server: NatsServer, admin: Admin) -> None:
    """Consumers of tasks that have ended count as long as the server has them, and are waited for."""

    def consumer(name: str, **more: Any) -> None:
        config = {"name": name, "ack_policy": "explicit", **more}
        admin.api(f"CONSUMER.CREATE.FEW.{name}", {"stream_name": "FEW", "config": config})

    def plan(**options: str) -> list[Any]:
        given = {"url": url_of(server), "stream": "FEW", **options}
        return list(MamaSubDataSource(given).reader(SCHEMA).partitions())

    make(admin, case := Case("FEW", "few", "few", {"subjects": ["few.>"], "max_consumers": 3}))
    query(server, case, exactlyOnce="false").attempt(ROWS)
    consumer("theirs", durable_name="theirs")
    says = r"option minPartitions=3: stream 'FEW' takes 3 consumers \(max_consumers\), and has theirs, so 2 tasks"
    with pytest.raises(OptionError, match=says):
        plan(minPartitions="3")
    for n in range(2):
        consumer(f"mama-{n}", inactive_threshold=WINDOW)
    assert len(plan(minPartitions="2")) == 2
    assert len(read(server, {"stream": "FEW", "minPartitions": "2"})) == len(ROWS)
    for n in range(2):
        consumer(f"mama-{n}", inactive_threshold=3600 * 10**9)
    with pytest.raises(ConfigError, match=r"stream 'FEW', or its account, .* for 0.2 s .*: read with fewer tasks"):
        read(server, {"stream": "FEW", "waitTimeout": "200ms"})

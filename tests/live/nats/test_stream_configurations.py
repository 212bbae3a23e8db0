"""Streams of all configurations: published to, read and written again, with what the server holds as the oracle. The
lines are those of docs/reference/stream-configurations.md, and more with headers."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, DataLost, MamaError, OptionError
from mama_spark.contracts.topics import covers
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.job import OutcomeCounts
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.testing.waiting import eventually

from tests.support.nats import mamasub
from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin, FetchedMessage
from tests.support.nats.plain_nats_connection import PlainNatsConnection
from tests.support.spark.attempts import Query, Row, batches, values

ACCOUNTS = """
accounts {
  HOME: { jetstream: enabled, users: [{user: home, password: p}], exports: [{service: "in.>"}],
    mappings: { "alias.*": "in.{{wildcard(1)}}" } }
  GUEST: { jetstream: enabled, users: [{user: guest, password: p}],
    imports: [{service: {account: HOME, subject: "in.>"}, to: "theirs.>"}] }
}
"""
ROWS: list[Row] = [(f"{n % 3}", b"row %d" % n) for n in range(9)]


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


def make(admin: Admin, name: str, prefix: str, **config: Any) -> None:
    admin.create_stream(name, [f"{prefix}.>"], allow_batched=True, duplicate_window=WINDOW, **config)


def query(server: NatsServer, prefix: str, **options: str) -> Query:
    return Query(url_of(server), {"topicPrefix": prefix, "exactlyOnce": "false", **options}, batch=None)


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
Mode = dict[str, str]
#: How rows are published, and why this does not go with ``exactlyOnce``: the driver refuses it with these words.
MODES: list[tuple[Mode, str]] = [
    ({"ackMode": "auto"}, ""),  # message by message, with ids
    ({"ackMode": "batch", "dedup": "false"}, "option exactlyOnce needs dedup=true"),
    ({"order": "partition"}, ""),
    ({"ackMode": "auto", "dedup": "false"}, "option exactlyOnce needs dedup=true"),
    ({"ackMode": "none", "dedup": "false"}, "option exactlyOnce needs dedup=true"),
]
OTHER_MODES: list[tuple[Mode, str]] = [
    ({"ackMode": "message", "dedup": "false"}, "option exactlyOnce needs dedup=true"),
    ({"ackMode": "batch"}, ""),
    ({"ackMode": "none"}, "option exactlyOnce needs acknowledgements"),
    ({"ackMode": "message", "pack": "lines"}, ""),
    ({"ackMode": "batch", "pack": "arrow", "packCompression": "zstd"}, ""),
]
#: Beginnings of lines that are tried in all modes in every run of the tests: one that refuses, one that stores.
EVERYWHERE = ("without rollup", '`{"subjects": ["own.>"], "sources"')
_numbers = count()


@dataclass(frozen=True)
class Cell:
    """How a batch is written.

    :ivar apart: why its mode does not go with ``exactlyOnce``
    :ivar streaming: it is a batch of a streaming query
    """

    mode: Mode
    apart: str
    streaming: bool
    once: bool

    @property
    def packs(self) -> bool:
        return "pack" in self.mode

    def options(self, name: str) -> Mode:
        if not self.once:
            return {**self.mode, "exactlyOnce": "false"}
        job = {} if self.streaming else {"txnAppId": name, "txnVersion": "1"}
        # another run waits for as long as an acknowledgement may take
        return {**self.mode, "exactlyOnce": "true", "waitTimeout": "300ms", **job}


#: What each line of the page is tried in at least.
USUAL = [*(Cell(*mode, False, False) for mode in MODES), Cell(*MODES[0], False, True)]
OTHERS = [Cell(*mode, streaming, not streaming) for mode in MODES[1:] + OTHER_MODES for streaming in (False, True)]


#: As lines of the page: title, ``mamapub``, the batch again, ``mamasub``. What single rows ask of the server.
WITH_HEADERS = [
    ("without rollup, a row with `Nats-Rollup: sub`", "rows fail: `rollup not permitted`", "", ""),
    ("without TTL, a row with `Nats-TTL: 1h`", "rows fail: `per-message TTL is disabled`", "", ""),
    ("a row with `Nats-Batch-Id: 1`", "rows fail: `belongs to atomic batches`", "", ""),
    ("a row with `Nats-Expected-Last-Sequence: 77`", "rows fail: `wrong last sequence`", "", ""),
    (
        "a row with `Nats-Expected-Last-Msg-Id: x`",
        "rows fail: `wrong last msg ID`; `ackMode=batch`, `order=partition`: rows fail: "
        "`fast ingest stores no message with`", "", "",
    ),
]  # fmt: skip

#: What empty cells of the page say.
USUAL_CELLS = ("`in.*`", "stored", "stored once", "read")


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


class Line:
    """One line of the page.

    :ivar published, stored: prefix of the topics that rows have, and of those that the stream has
    :ivar header: of the first row
    """

    def __init__(self, title: str, *others: str) -> None:
        self.title, _, topics = title.partition(": topics ")
        topics, self.mamapub, self.once, self.mamasub = (
            said or usual for said, usual in zip((topics, *others), USUAL_CELLS, strict=True)
        )
        given = codes(self.title)
        self.config: dict[str, Any] = next((json.loads(one) for one in given if one.startswith("{")), {})
        header = next((one.partition(": ") for one in given if one.startswith("Nats-")), None)
        self.header = None if header is None else (header[0], header[2])
        self.published, self.stored = (codes(topics)[at].partition(".")[0] for at in (0, -1))
        self.copies = {"mirror", "sources"} & self.config.keys()

    def copies_topic(self, topic: str) -> bool:
        """Whether the stream takes this one from where it gets its messages."""
        (origin,) = self.config.get("sources") or [self.config["mirror"]]
        wanted = [one["src"] for one in origin.get("subject_transforms", [])] or [origin.get("filter_subject", ">")]
        return any(covers(src, topic) for src in wanted)

    def said(self, mode: Mode) -> str:
        """What ``mamapub`` does in a mode."""
        if self.header is not None and "pack" in mode:
            return "rows fail: `has no effect inside a pack`"
        usual, *others = self.mamapub.split("; ")
        for other in others:
            modes, _, outcome = other.partition(": ")
            if any(mode.get(name) == value for name, _, value in (one.partition("=") for one in codes(modes))):
                return outcome
        return usual

    def refusals(self, cell: Cell) -> list[str]:
        """With which words ``mamapub`` refuses to begin."""
        said = [self.said(cell.mode), *([self.once] if cell.once else [])]
        if self.header is not None and cell.mode.get("pack") == "lines":
            said.append("refused: `pack=lines carries values only`")
        return [codes(one)[-1] for one in said if one.startswith("refused")]

    def headers(self, n: int) -> dict[str, str]:
        """Of the row of this number."""
        return {} if n or self.header is None else dict([self.header])


def cells_of(section: str) -> Iterator[list[str]]:
    """Of each row of the table in it."""
    for line in [line for line in section.splitlines() if line.startswith("| ")][1:]:
        yield [cell.strip() for cell in line.split("|")[1:-1]]


def lines() -> Iterator[Line]:
    usual, failing, others = re.split(r"(?m)^## .*$", PAGE.read_text(encoding="utf-8"))[1:]
    for title in re.findall(r"(?m)^- (.*)$", usual):
        yield Line(title, "", "", "")
    for title, error in cells_of(failing):
        yield Line(title, f"rows fail: {error}", "", "")
    for cells in [*cells_of(others), *WITH_HEADERS]:
        yield Line(*cells)


def with_headers(rows: list[Row], headers: list[Any]) -> Iterator[pa.RecordBatch]:
    of_headers = pa.map_(pa.string(), pa.list_(pa.string()))
    return (batch.append_column("headers", pa.array(headers, of_headers)) for batch in batches(rows))


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
            admin.publish("in.0", b"sealed")
            admin.update_stream(self.name, sealed=True)
        state = self.state
        self.before, self.kept_before = int(state["last_seq"]), int(state["messages"])
        self.client = PlainNatsConnection(url_of(server))

    def __enter__(self) -> Made:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for name in {self.name, self.origin}:
            self.admin.api(f"STREAM.DELETE.{name}")

    @property
    def state(self) -> dict[str, Any]:
        """What the server says of the stream that is published to."""
        found: dict[str, Any] = self.admin.info(self.origin)["state"]
        return found

    @property
    def taken(self) -> int:
        """How many messages the server has stored since it was made."""
        return int(self.state["last_seq"]) - self.before

    @property
    def removed(self) -> bool:
        """Whether the server has removed some of them."""
        state = self.state
        return int(state["messages"]) - self.kept_before < int(state["last_seq"]) - self.before

    def publish(self, cell: Cell, run: str = "first") -> tuple[OutcomeCounts, str]:
        """The outcomes of the rows, and why there are none."""
        given = {"topicPrefix": self.line.published, **cell.options(self.name)}
        write = Query(self.url, given, batch=7 if cell.streaming else None, headers=self.line.header is not None)
        headers = [[(name, [value]) for name, value in self.line.headers(n).items()] for n in range(len(ROWS))]
        try:
            report = write.attempt(with_headers(ROWS, headers) if write.headers else batches(ROWS), run=run)
        except OptionError:
            raise
        except MamaError as e:
            return OutcomeCounts(), str(e)
        return report.counts, report.fatal or ""

    def fetched(self, name: str) -> dict[int, FetchedMessage]:
        """What a stream has, one message after the other, by sequence."""
        state = self.admin.info(name)["state"]
        found, asked = {}, range(state["first_seq"], state["last_seq"] + 1)
        for sequence in asked:  # the answers are not in this order
            body = json.dumps({"seq": sequence}).encode()
            self.client.publish(f"$JS.API.STREAM.MSG.GET.{name}", self.client.inbox + b"a", body)
        for answer in [json.loads(self.client.message().payload) for _ in asked]:
            if (message := answer.get("message")) is not None:
                block = b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:-2]
                headers = {key: [value] for key, _, value in (line.partition(": ") for line in block)}
                payload = b64decode(message.get("data", ""))
                found[message["seq"]] = FetchedMessage(message["seq"], message["subject"], payload, headers)
        return dict(sorted(found.items()))

    def messages(self) -> dict[int, Row]:
        """What the stream that is read has, by sequence."""
        return {sequence: (one.topic, one.payload) for sequence, one in self.fetched(self.name).items()}

    def rows(self) -> Counter[Row]:
        """What the stream that is published to has got."""
        found = self.fetched(self.origin)
        return values(one for sequence, one in found.items() if sequence > self.before)

    def wait_for_copies(self) -> None:
        if self.line.copies:
            copied = [one.topic for one in self.fetched(self.origin).values() if self.line.copies_topic(one.topic)]
            stored_up_to(self.admin, self.name, len(copied))


class Truth(NamedTuple):
    """What the server does with the rows, published one by one by another client: what it has then, how many it took,
    and its errors."""

    rows: Counter[Row]
    taken: int
    errors: list[str]

    @classmethod
    def of(cls, server: NatsServer, admin: Admin, line: Line) -> Truth:
        errors: list[str] = []
        with Made(server, admin, line) as made, PlainNatsConnection(made.url) as client:
            for n, (topic, value) in enumerate(ROWS):
                client.publish(f"{line.published}.{topic}", client.inbox + b"a", value, line.headers(n))
                if not line.config.get("no_ack"):
                    error = json.loads(client.message().payload).get("error")
                    errors += [] if error is None else [error["description"]]
            eventually(lambda: made.taken == len(ROWS) - len(errors), "all are stored that are not refused")
            return cls(made.rows(), made.taken, errors)


@pytest.mark.parametrize("line", list(lines()), ids=lambda line: line.title)
def test_what_the_page_says_of_a_stream_is_what_happens(
    server: NatsServer, admin: Admin, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    truth = Truth.of(server, admin, line)
    for cell in USUAL:
        held_to_line(server, admin, line, cell, truth)
    with Made(server, admin, line) as made:
        made.publish(Cell(*MODES[-1], False, False))
        eventually(lambda: made.taken == truth.taken, "what was published is stored")
        if "warning" in line.mamapub:
            assert codes(line.mamapub)[-1] in caplog.text
        held_to_mamasub(server, made, caplog)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line.title, marks=() if line.title.startswith(EVERYWHERE) else pytest.mark.thorough)
        for line in lines()
    ],
)
def test_what_the_page_says_of_a_stream_is_what_happens_in_all_other_modes(
    server: NatsServer, admin: Admin, line: Line
) -> None:
    truth = Truth.of(server, admin, line)
    for cell in OTHERS:
        held_to_line(server, admin, line, cell, truth)


def held_to_line(server: NatsServer, admin: Admin, line: Line, cell: Cell, truth: Truth) -> None:
    """Publishes the batch, reads it, and with ``exactlyOnce`` publishes it again."""
    with Made(server, admin, line) as made:
        if cell.once and cell.apart:
            with pytest.raises(OptionError, match=cell.apart):
                made.publish(cell)
            return
        counts, fatal = made.publish(cell)
        if refusals := line.refusals(cell):
            assert any(text in fatal for text in refusals), (cell, fatal)
            assert not made.taken, cell
            return
        assert not fatal, cell
        held_to_mamapub(made, cell, counts, truth)
        if cell.once:
            held_to_exactly_once(made, cell, counts)
        elif cell in OTHERS and not line.mamasub.startswith("refused"):
            made.wait_for_copies()
            stored = values(made.fetched(made.name).values())
            for ask in (read, lambda server, options: read_on(server, options)[0]):
                assert Counter(ask(server, {"stream": made.name})) == stored, cell


def held_to_mamapub(made: Made, cell: Cell, counts: OutcomeCounts, truth: Truth) -> None:
    said = made.line.said(cell.mode)
    if cell.mode.get("ackMode") == "none":
        assert counts.published + counts.failed == len(ROWS), cell
        if not cell.packs and "max_bytes" not in made.line.config:  # ids are bytes, too
            eventually(lambda: made.taken == truth.taken, "all are stored that the server takes")
            assert made.rows() == truth.rows, cell
        return
    assert counts.acked + counts.failed == len(ROWS), cell
    assert all(codes(said)[-1] in reason for reason in counts.reasons), (cell, counts.reasons)
    if cell.packs:  # the server refuses, or removes, all rows of a message
        assert made.removed or made.rows().total() in (0, counts.acked), cell
        return
    assert bool(counts.failed) == said.startswith("rows fail"), (cell, counts.reasons)
    assert counts.acked == made.taken, cell
    if "max_bytes" in made.line.config:
        return
    assert (counts.acked, made.rows()) == (truth.taken, truth.rows), (cell, counts.reasons)
    own = said.startswith("rows fail") and not any(codes(said)[-1] in error for error in truth.errors)
    for error in () if own else set(truth.errors):
        assert sum(n for reason, n in counts.reasons.items() if error in reason) == truth.errors.count(error), cell


def held_to_exactly_once(made: Made, cell: Cell, first: OutcomeCounts) -> None:
    before = made.fetched(made.origin)
    forget_ids(made.admin)
    again, fatal = made.publish(cell, "again")
    if not cell.packs:
        assert made.removed == made.line.once.startswith("again refused"), cell
    if made.removed:
        assert codes(made.line.once)[-1] in fatal, cell
    else:
        assert fatal == "", cell
        assert (again.acked, again.duplicates, again.failed) == (first.acked, first.acked, first.failed), cell
    assert made.fetched(made.origin) == before, cell


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
    if "warning" in said:
        assert codes(said)[-1] in caplog.text
    goes_on(server, made, position)


def goes_on(server: NatsServer, made: Made, position: Any) -> None:
    """A query that has read so far gets all that is stored after it, or an error where some of that is gone."""
    before = made.admin.info(made.name)["state"]["last_seq"]
    made.publish(Cell({"ackMode": "auto", "dedup": "false"}, "", False, False))
    made.wait_for_copies()
    new = {sequence: row for sequence, row in made.messages().items() if sequence > before}
    options = {"stream": made.name}
    if made.admin.info(made.name)["state"]["last_seq"] > before + len(new):
        with pytest.raises(DataLost, match="records that this query has not read are gone"):
            read_on(server, options, position)
        options["failOnDataLoss"] = "false"
    assert read_on(server, options, position)[0] == list(new.values())


# --- what is no row of it ---------------------------------------------------------------------------------------------


def test_streams_that_get_their_messages_from_others_are_read_by_name_and_not_written(
    server: NatsServer, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    make(admin, "PLAIN", "plain")
    query(server, "plain").attempt(ROWS)
    origin = {"name": "PLAIN"}
    renamed = {**origin, "subject_transforms": [{"src": "plain.>", "dest": "p.>"}]}
    admin.create_stream("MIRROR", [], mirror=origin)
    admin.create_stream("BOTH", ["own.>"], sources=[renamed], allow_batched=True)
    for name in ("MIRROR", "BOTH"):
        stored_up_to(admin, name, len(ROWS))
        report = query(server, "plain", stream=name).attempt(ROWS)
        assert re.search(rf"belongs to stream 'PLAIN', not to '{name}'; correct option stream$", report.fatal or "")
    assert read(server, {"stream": "MIRROR", "topics": "typo.>"}) == []
    assert "stream 'MIRROR', which gets its messages from other streams, holds none on 'typo.>' now" in caplog.text
    assert len(read(server, {"topics": "plain.>"})) == len(ROWS), "mirrors are not read beside their origin"
    with pytest.raises(ConfigError, match=r"read by name \(option stream\): BOTH, MIRROR"):
        read(server, {"topics": "p.>"})


def test_what_a_stream_never_stores_is_said(server: NatsServer, admin: Admin) -> None:
    make(admin, "TRANSFORMED", "taken", subject_transform={"src": "taken.>", "dest": "kept.>"})
    for named in [{}, {"stream": "TRANSFORMED"}]:
        with pytest.raises(ConfigError, match=r"takes taken\.> and stores taken\.> as kept\.> \(subject_transform\)"):
            read(server, {"topics": "taken.>", **named})
    report = query(server, "nobody").attempt(ROWS)
    assert "no stream takes topic 'nobody.0'" in (report.fatal or "")


def test_tasks_are_no_more_than_a_stream_takes_consumers(server: NatsServer, admin: Admin) -> None:
    """Consumers of tasks that have ended count as long as the server has them, and are waited for."""

    def consumer(name: str, **more: Any) -> None:
        config = {"name": name, "ack_policy": "explicit", **more}
        admin.api(f"CONSUMER.CREATE.FEW.{name}", {"stream_name": "FEW", "config": config})

    def plan(**options: str) -> list[Any]:
        given = {"url": url_of(server), "stream": "FEW", **options}
        return list(MamaSubDataSource(given).reader(SCHEMA).partitions())

    make(admin, "FEW", "few", max_consumers=3)
    query(server, "few").attempt(ROWS)
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

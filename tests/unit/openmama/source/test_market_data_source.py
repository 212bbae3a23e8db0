"""What a market data publisher answers, and what it publishes, and its events."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field, MamaMsg, reserved_field
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.status import MsgStatus, MsgType, SubscriptionMsgType
from mama_spark.mama.messages.values import MamaPrice, MamaTime
from mama_spark.openmama.source import event_reporter, market_data_source
from mama_spark.openmama.source.event_reporter import SourceEventReporter, SourceEventReporters, SourceEvents
from mama_spark.openmama.source.market_data_source import MarketDataSource, PublisherEvent, SourceAction, fields_of
from mama_spark.openmama.source.source_state import SourceState
from mama_spark.openmama.wire.dictionary import DictionaryEntry, by_name, dictionary_of
from mama_spark.openmama.wire.frames import BridgeFrame, FrameType
from mama_spark.openmama.wire.market_data import REFUSALS, MarketDataRequest, request_message
from mama_spark.recording.log_position import LogPosition
from mama_spark.report.page import report
from mama_spark.testing.waiting import eventually

from tests.support.flight_logs import rows
from tests.support.tables import each

ENTRIES = [DictionaryEntry(109, "bid", FieldType.PRICE), DictionaryEntry(110, "size", FieldType.U32),
           DictionaryEntry(111, "at", FieldType.TIME)]  # fmt: skip
REFUSED, GROUPS = [("NO*", MsgStatus.NOT_PERMISSIONED)], {"G": ["A", "B", "C"]}
RULES = market_data_source.SourceRules(REFUSED, groups=GROUPS, dictionary=ENTRIES)


def source() -> MarketDataSource:
    """With two symbols, of two updates and one."""
    made = MarketDataSource("S", 77, RULES)
    for symbol, value in (("A", 1), ("A", 2), ("B", 5)):
        made.update(symbol, [Field("x", 0, FieldType.I32, value)])
    made.update("B", [Field("y", 0, FieldType.I32, 1)])
    return made


def ask(symbol: str, message: int = 0, *, inbox: bool = True, kind: int = 0, topic: str = "_MD.S") -> BridgeFrame:
    payload = encode(request_message(MarketDataRequest(symbol, kind, message)))
    return BridgeFrame(FrameType.REQUEST if inbox else FrameType.PUBLISH, topic, payload, "_INBOX.x" if inbox else "")


def of(kind: type[Any], actions: list[SourceAction]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def events(actions: list[SourceAction]) -> list[tuple[str, str, str]]:
    return [(a.callback, a.symbol, a.info) for a in of(PublisherEvent, actions)]


def answers(actions: list[SourceAction]) -> list[dict[str, object]]:
    return [{f.name: f.value for f in decode(a.payload)} for a in of(market_data_source.AnswerRequest, actions)]


def published(actions: list[SourceAction]) -> list[tuple[str, dict[str, object]]]:
    return [
        (a.topic, {f.name: f.value for f in decode(a.payload)}) for a in of(market_data_source.PublishMessage, actions)
    ]


@pytest.mark.spec("OW16", "OW20")
def test_an_image_has_all_fields_and_the_number_of_the_last_update_and_the_next_update_one_more() -> None:
    one = source()
    asked = one.received(ask("B"))
    assert events(asked) == [("onRequest", "B", "SUBSCRIBE")]
    assert answers(asked) == [
        {"MdMsgType": 1, "MdMsgStatus": 0, "MdSeqNum": 2, "wIssueSymbol": "B", "MamaSenderId": 77, "x": 5, "y": 1}
    ]
    updated = one.update("B", [Field("y", 0, FieldType.I32, 3)])
    stamps = {"MdMsgType": 0, "MdMsgStatus": 0, "MdSeqNum": 3, "wIssueSymbol": "B", "MamaSenderId": 77}
    assert published(updated) == [("S.B", {**stamps, "y": 3}), ("S.G", {**stamps, "y": 3})]
    assert answers(one.received(ask("B", SubscriptionMsgType.SNAPSHOT)))[0]["MdSeqNum"] == 3
    assert events(one.update("C", [])) == [("onCreate", "C", "")]


@each(
    ("kind", "served"),
    [
        (MsgType.CLOSING, (MsgType.CLOSING, 3)), (MsgType.BOOK_UPDATE, (MsgType.BOOK_UPDATE, 3)),
        (MsgType.BOOK_RECAP, (MsgType.UPDATE, 3)), (MsgType.SNAPSHOT, (MsgType.UPDATE, 3)),
        (MsgType.MISC, (MsgType.MISC, 2)), (MsgType.NOT_FOUND, (MsgType.NOT_FOUND, 2)),
    ],
)  # fmt: skip
def test_what_holds_all_fields_is_an_update_and_messages_without_data_use_up_no_number(
    kind: MsgType, served: tuple[int, int]
) -> None:
    record = encode(MamaMsg([reserved_field("MdMsgType", FieldType.U8, int(kind))]))
    found, fields = fields_of(record, {})
    ((_, msg),) = [p for p in published(source().update("A", fields, found)) if p[0] == "S.A"]
    assert (msg["MdMsgType"], msg["MdSeqNum"]) == served


@pytest.mark.spec("OW18")
@each("message", [7, 8, 9, 10, 12])
def test_a_recap_is_an_image_of_its_type_into_the_inbox_or_to_all(message: int) -> None:
    one = source()
    assert [(m["MdMsgType"], m["MdSeqNum"]) for m in answers(one.received(ask("A", message)))] == [(MsgType.RECAP, 2)]
    ((topic, recap),) = published(one.received(ask("A", message, inbox=False)))
    assert (topic, recap["MdMsgType"], recap["MdSeqNum"]) == ("S.A", MsgType.RECAP, 2)


@pytest.mark.spec("OW17")
@each("status", sorted(REFUSALS))
def test_every_status_can_refuse(status: str) -> None:
    one = MarketDataSource("S", 77, market_data_source.SourceRules([("X", REFUSALS[status])]))
    asked = one.received(ask("X"))
    assert [(m["MdMsgType"], m["MdMsgStatus"], m["wIssueSymbol"]) for m in answers(asked)] == [
        (1, REFUSALS[status], "X")
    ]
    assert events(asked) == [("onRequest", "X", f"SUBSCRIBE; refused: {status}")]


@pytest.mark.spec("OW17", "OW20")
def test_an_unknown_symbol_is_refused_or_gets_no_answer() -> None:
    asked = source().received(ask("Z"))
    assert events(asked) == [("onNewRequest", "Z", "SUBSCRIBE; refused: NOT_FOUND")]
    assert answers(asked)[0]["MdMsgStatus"] == MsgStatus.NOT_FOUND
    waiting = MarketDataSource("S", 77, market_data_source.SourceRules(unknown=None)).received(ask("Z"))
    assert waiting == [PublisherEvent("onNewRequest", "Z", "SUBSCRIBE; not answered")]


@pytest.mark.spec("OW19", "OW20")
def test_a_subscription_without_image_and_a_refresh_reach_the_callbacks() -> None:
    one = source()
    assert one.received(ask("A", inbox=False)) == [PublisherEvent("onRequest", "A", "SUBSCRIBE")]
    refreshed = one.received(ask("A", SubscriptionMsgType.REFRESH, inbox=False))
    assert events(refreshed) == [("onRefresh", "A", "REFRESH")]
    assert published(refreshed) == [("S.A", {"MdMsgStatus": 6, "MdMsgType": 171, "MdSeqNum": 2, "MamaSenderId": 77})]


@pytest.mark.spec("OW20")
def test_messages_that_are_no_requests_reach_on_msg_and_on_error() -> None:
    one, whole = source(), request_message(MarketDataRequest("A", 0, 0))

    def received(msg: MamaMsg) -> list[SourceAction]:
        return one.received(BridgeFrame(FrameType.PUBLISH, "_MD.S", encode(msg)))

    def without(name: str) -> MamaMsg:
        return MamaMsg([f for f in whole if f.name != name])

    assert received(without("MdSubscriptionType")) == [PublisherEvent("onMsg", "A")]
    assert received(without("MdSubscSymbol")) == [
        PublisherEvent("onError", "", "NOT_FOUND: a request without a symbol", "NOT_FOUND")
    ]
    assert events(received(without("MdSubscMsgType")))[0][0] == "onError"
    assert events(one.received(BridgeFrame(FrameType.PUBLISH, "_MD.S", b"Qx")))[0][0] == "onError"
    assert received(request_message(MarketDataRequest("A", 0, 2))) == [PublisherEvent("onRequest", "A", "UNSUBSCRIBE")]


def test_a_group_is_answered_with_an_image_of_each_member() -> None:
    images = answers(source().received(ask("G", kind=1)))
    assert [(m["wIssueSymbol"], m["MdMsgNum"], m["MdMsgTotal"], m["MdSeqNum"]) for m in images] == [
        ("A", 1, 2, 2), ("B", 2, 2, 2)
    ]  # fmt: skip


@pytest.mark.spec("OW23")
@pytest.mark.parametrize("topic", ["_MDDD.S.DATA_DICT", "_MDDD.WOMBAT.DATA_DICT"])
def test_the_dictionary_is_answered(topic: str) -> None:
    one = source()
    assert topic in one.request_topics
    (answer,) = of(market_data_source.AnswerRequest, one.received(ask("DATA_DICT", 5, kind=4, topic=topic)))
    assert [e for e in dictionary_of(decode(answer.payload)) if e.fid > 100] == ENTRIES
    assert MarketDataSource("S", 1).request_topics == ["_MD.S"], "without a dictionary nobody is answered"


def test_records_are_omnm_messages_or_json_objects() -> None:
    named = by_name(ENTRIES)
    message = MamaMsg([Field("MdMsgType", 1, FieldType.U8, MsgType.INITIAL), Field("MdSeqNum", 10, FieldType.U32, 9),
                       Field("z", 5, FieldType.U8, 1)])  # fmt: skip
    assert fields_of(encode(message), named) == (0, [Field("z", 5, FieldType.U8, 1)])
    message.fields[0] = Field("MdMsgType", 1, FieldType.U8, MsgType.DELETE)
    assert fields_of(encode(message), named)[0] == MsgType.DELETE
    text = b'{"bid": 1.5, "size": 3, "at": "2026-01-02T03:04:05.5Z", "s": "x", "n": 7, "f": 0.5, "b": true, "no": null}'
    assert fields_of(text, named)[1] == [
        Field("bid", 109, FieldType.PRICE, MamaPrice(1.5)), Field("size", 110, FieldType.U32, 3),
        Field("at", 111, FieldType.TIME, MamaTime(1767323045, 500_000_000)), Field("s", 0, FieldType.STRING, "x"),
        Field("n", 0, FieldType.I64, 7), Field("f", 0, FieldType.F64, 0.5), Field("b", 0, FieldType.BOOL, True),
    ]  # fmt: skip


@each(
    ("payload", "words"),
    [(b"", "neither"), (b"[1]", "neither"), (b"O\x01", "no OMNM message"), (b'{"size": -1}', "field 'size'"),
     (b'{"x": [1]}', "list has no type"), (b'{"at": "2026-01-02"}', "no time zone"), (b'{"bid": "x"}', "field 'bid'")],
)  # fmt: skip
def test_records_that_are_no_messages_say_why(payload: bytes, words: str) -> None:
    with pytest.raises(market_data_source.BadRecord, match=words):
        fields_of(payload, by_name(ENTRIES))


@pytest.mark.spec("OW21")
def test_numbers_images_sender_and_position_are_kept_over_restarts(tmp_path: Path) -> None:
    file = tmp_path / "below" / "state"
    state = SourceState(file, "S")
    one = MarketDataSource("S", state.sender, RULES)
    one.update("A", [Field("x", 0, FieldType.I32, 1)])
    state.save(LogPosition("log-1", 17, 4_711), one.take_changed(), 3)
    assert one.take_changed() == []
    with pytest.raises(ConfigError, match="another process may have it"):
        SourceState(file, "S")
    state.close()
    again = SourceState(file, "S")
    saved = (again.sender, *again.at, again.wanted)
    assert saved == (state.sender, "log-1", 17, 4_711, 3)
    assert again.topics() == [market_data_source.PublishedTopic("A", 1, {("x", 0): Field("x", 0, FieldType.I32, 1)})]
    again.close()
    with pytest.raises(ConfigError, match="is the state of the source 'S'"):
        SourceState(file, "T")
    (tmp_path / "text").write_text("no database, but long enough to be seen as none " * 10)
    with pytest.raises(ConfigError, match="no state of a source"):
        SourceState(tmp_path / "text", "S")


# --- Events of a market data source: what they hold, how many there are, and that each is stored once -----------------

pytestmark = pytest.mark.spec("OW20")


def test_a_callback_has_topic_status_and_text() -> None:
    events = SourceEvents("S", 7)
    events.lifecycle("live", 1)
    events.callback(PublisherEvent("onRequest", "A", "SUBSCRIBE; refused: NOT_ENTITLED", "NOT_ENTITLED"), 2)
    events.callback(PublisherEvent("onError", "", "NOT_FOUND: No symbol", "NOT_FOUND"), 3)
    assert events.take(4) == [
        EventRecord("publisher", "live", 1, "S", 7, publisher="S/7", state="LIVE"),
        EventRecord("topic", "onRequest", 2, "S", 7, "S.A", source="S", symbol="A", status="NOT_ENTITLED",
                    info="SUBSCRIBE; refused: NOT_ENTITLED", publisher="S/7"),
        EventRecord("topic", "onError", 3, "S", 7, status="NOT_FOUND", info="NOT_FOUND: No symbol", publisher="S/7"),
    ]  # fmt: skip
    assert events.take(5) == []


def test_a_flood_of_requests_is_counted() -> None:
    events = SourceEvents("S", 7, most=3)
    for _ in range(1000):
        events.callback(PublisherEvent("onRequest", "A"), 1)
    events.callback(PublisherEvent("onMsg", "A"), 1)
    events.lifecycle("destroy", 2)
    taken = [(e.event, e.info) for e in events.take(3)]
    more = "more of them, each without an event of its own"
    assert taken[3:] == [("destroy", None), ("onRequest", f"997 {more}"), ("onMsg", f"1 {more}")]
    events.callback(PublisherEvent("onRequest", "A"), 4)
    assert len(events.take(5)) == 1


class FailingStore:
    """Takes nothing until ``free``."""

    name = "the store"

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.free = error, threading.Event()
        self.tries: list[tuple[int, list[str]]] = []
        self.stored: list[tuple[int, list[str]]] = []

    def open(self) -> None:
        if self.error is not None:
            raise self.error

    def store(self, number: int, events: Sequence[EventRecord]) -> None:
        batch = (number, [e.event for e in events])
        self.tries.append(batch)
        if not self.free.is_set():
            raise Unavailable("nobody there")
        self.stored.append(batch)

    def close(self) -> None:
        self.tries.append((0, []))


def test_a_batch_that_was_not_stored_comes_again_as_it_was() -> None:
    store, warnings = FailingStore(Unavailable("nobody there")), list[str]()
    reporter = SourceEventReporter(store, SourceEvents("S", 7), 0.01, warnings.append)
    with SourceEventReporters([reporter]) as reports:
        eventually(lambda: len(store.tries) >= 3, "it tries again")
        reports.callback(PublisherEvent("onMsg", "A"))
        store.free.set()
        eventually(lambda: len(store.stored) == 2, "both batches are stored")
    assert store.stored == [(1, ["create"]), (2, ["onMsg"]), (3, ["destroy"])]
    assert {number for number, _ in store.tries[:3]} == {1}
    assert warnings == ["events of the source wait for the store: nobody there"]
    assert store.tries[-1] == (0, []), "closed at the end"


def test_what_the_user_must_change_ends_it() -> None:
    store = FailingStore(ConfigError("no permission"))
    with pytest.raises(ConfigError, match="no permission"):
        SourceEventReporters([SourceEventReporter(store, SourceEvents("S", 7), 0.01, print)]).__enter__()
    assert not store.tries


def test_a_batch_that_is_stored_again_adds_no_rows(tmp_path: Path) -> None:
    events = SourceEvents("S", 7)
    events.callback(PublisherEvent("onCreate", "A"), 1_700_000_000_000_000)
    batch = events.take(0)
    store = event_reporter.FlightLogStore(str(tmp_path / "log"), {}, "run")
    store.open()
    for number in (1, 1, 2):
        store.store(number, batch)
    stored = [row for row in rows(tmp_path / "log") if row["committed"]]
    columns = ("kind", "event", "topic", "run_id", "bridge")
    assert [tuple(row[name] for name in columns) for row in stored] == [
        ("topic", "onCreate", "S.A", "run", "openmama")
    ] * 2
    assert report(str(tmp_path / "log")).html.count("<svg") == 1, "a log without messages has a page"

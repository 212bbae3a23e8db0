"""Messages of market data and of the dictionary, against recorded ones."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import Field
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.sequence_numbers import next_number
from mama_spark.mama.messages.status import MsgStatus, MsgType, SubscriptionMsgType
from mama_spark.openmama.wire import dictionary, market_data
from mama_spark.openmama.wire.dictionary import DictionaryEntry, by_name, dictionary_of, parse_dictionary
from mama_spark.openmama.wire.frames import FRAMINGS
from mama_spark.openmama.wire.market_data import GROUP, NORMAL, MarketDataRequest, Stamp, stamped, subscription_topic

from tests.support.tables import each
from tests.support.vectors import vectors

VECTORS = {v["name"]: v for v in vectors("openmama-wire")}
HOST, SENDER = "127.0.0.1", 72058139498776379


def frame(name: str) -> tuple[str, bytes]:
    """Topic and payload of a recorded frame."""
    found = FRAMINGS[name.partition("_")[0]].decode(bytes.fromhex(VECTORS[name]["hex"]))
    return found.topic, found.payload


@each(
    ("name", "topic", "request_"),
    [
        ("zmq_md_subscribe_no_image", subscription_topic("WOMBAT"), MarketDataRequest("IBM", NORMAL, 0, HOST)),
        ("zmq_md_subscribe_group", subscription_topic("WOMBAT"), MarketDataRequest("IBM", GROUP, 0, HOST)),
        ("zmq_md_recap_request", subscription_topic("PY"),
         MarketDataRequest("GAP", NORMAL, SubscriptionMsgType.DQ_UNKNOWN, HOST)),
        ("oz_md_snapshot_request", subscription_topic("WOMBAT"),
         MarketDataRequest("ORCL", NORMAL, SubscriptionMsgType.SNAPSHOT, HOST)),
        ("oz_dict_request", market_data.dictionary_topic("WOMBAT"),
         MarketDataRequest("DATA_DICT", market_data.DICTIONARY, 5, HOST)),
    ],
)  # fmt: skip
def test_requests_are_read_and_written_as_real_subscribers_write_them(
    name: str, topic: str, request_: MarketDataRequest
) -> None:
    sent_to, payload = frame(name)
    assert sent_to == topic
    assert market_data.read_request(decode(payload)) == request_
    assert encode(market_data.request_message(request_)) == payload


@pytest.mark.spec("OW17")
@each(
    ("name", "status"), [("badsym", "BAD_SYMBOL"), ("notfound", "NOT_FOUND"), ("noperm", "NOT_PERMISSIONED"),
                         ("timeo", "TIMEOUT")]
)  # fmt: skip
def test_refusals_are_those_that_real_listeners_took(name: str, status: str) -> None:
    _, payload = frame(f"zmq_md_refused_{name}")
    assert encode(market_data.refusal(name.upper(), market_data.REFUSALS[status], 1, SENDER)) == payload


@pytest.mark.spec("OW8")
def test_stamps_have_the_types_that_real_programs_can_read() -> None:
    data = [Field("wBidPrice", 109, FieldType.F64, 1.5), Field("MdSeqNum", 10, FieldType.I64, 7)]
    made = stamped(Stamp(MsgType.INITIAL, MsgStatus.OK, 3, SENDER, "S"), data)
    assert [(f.name, f.fid, f.type.name, f.value) for f in made] == [
        ("MdMsgType", 1, "U8", 1), ("MdMsgStatus", 2, "U8", 0), ("MdSeqNum", 10, "U32", 3),
        ("wIssueSymbol", 305, "STRING", "S"), ("MamaSenderId", 20, "U64", SENDER), ("wBidPrice", 109, "F64", 1.5),
    ]  # fmt: skip
    assert [f.name for f in stamped(Stamp(sender=SENDER), [])] == ["MdMsgType", "MdMsgStatus"], "no number, no sender"
    assert (next_number(1), next_number(0xFFFF_FFFF)) == (2, 1)


@pytest.mark.spec("OW19")
def test_a_refresh_is_answered_with_the_same_values_as_by_a_real_publisher() -> None:
    _, payload = frame("zmq_md_refresh_answer")
    ours, theirs = market_data.refresh_answer(31, 72058139498782273), decode(payload)
    assert sorted((f.fid, f.type, f.value) for f in ours) == sorted((f.fid, f.type, f.value) for f in theirs)


FILE = "1|MdMsgType|15\n\nno line\n# 7|x|8\n109|wBidPrice|27|more\n 8888 | wText | STRING \n9|flag|BOOLEAN\n"
ENTRIES = [
    DictionaryEntry(1, "MdMsgType", FieldType.U8),
    DictionaryEntry(109, "wBidPrice", FieldType.PRICE),
    DictionaryEntry(8888, "wText", FieldType.STRING),
    DictionaryEntry(9, "flag", FieldType.BOOL),
]


def test_a_dictionary_is_read_from_its_file() -> None:
    assert parse_dictionary(FILE) == ENTRIES
    assert by_name(ENTRIES)["wText"] == ENTRIES[2]


@each("line", ["0|x|8", "70000|x|8", "a|x|8", "1||8", "1|x|nothing", "1|x|200", "²|x|8"])
def test_a_line_of_a_dictionary_that_says_nothing_sound_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 of the dictionary"):
        parse_dictionary(f"1|x|8\n{line}\n")


def test_every_type_can_be_in_a_dictionary_message() -> None:
    all_types = [DictionaryEntry(1000 + t, f"f{t}", t) for t in FieldType if t is not FieldType.UNKNOWN]
    sent = decode(encode(dictionary.dictionary_message(all_types)))
    assert [e for e in dictionary_of(sent) if e.fid >= 1000] == all_types
    assert sent.field("MdMsgType") == Field("MdMsgType", 1, FieldType.U8, 1)


@pytest.mark.spec("OW6")
def test_the_dictionary_of_a_real_publisher_is_read() -> None:
    _, payload = frame("oz_dict_reply")
    entries = dictionary_of(decode(payload))
    named = {f["name"]: (f["fid"], f["type"]) for f in VECTORS["oz_dict_reply"]["decoded"]["fields"] if f["fid"]}
    assert {e.name: (e.fid, e.type.name) for e in entries} == named

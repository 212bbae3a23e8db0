"""Deliveries as columns: exact whatever they hold, however the bytes are cut, and whatever comes instead of them."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from mama_spark.contracts.message import HEADERS_TYPE, as_binary, payload_sizes
from mama_spark.nats.protocol import parser, records
from mama_spark.nats.protocol.records import (
    DeliveryBuffer,
    DeliveryParser,
    OutOfOrder,
    delivery_numbers,
    header_column,
    read_block,
    read_reply,
    records_of,
    records_up_to,
)

from tests.support.memory import peak_of
from tests.support.nats.deliveries import FORMS, SID, NatsDelivery, block, columns, frame, held_to, reply
from tests.support.tables import each
from tests.support.tiers import examples

MANY = 1 << 20  # more deliveries than come


def cut_all(data: bytes) -> DeliveryBuffer:
    cutter = DeliveryParser(SID)
    assert cutter.take(data, 0, MANY) == len(data)
    return cutter.take_buffer()


SUBJECTS = st.sampled_from(["s.a", "s.b", "grüße.x", "7", "$JS.x", "MSG", "a" * 300])
VALUES = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=12)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["A", "a", "B-c", "Nats-Msg-Id"]), st.lists(VALUES, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
    unique_by=lambda h: h[0],
)
PAYLOADS = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"\r\n", b"MSG s.a 7 $JS.ACK.S.mama-x.1.1.1.1.1 1\r\n", b""])
)
DELIVERIES = st.lists(st.builds(NatsDelivery, SUBJECTS, st.none() | HEADERS, PAYLOADS), min_size=1, max_size=12)


@examples(40)
@given(DELIVERIES, st.sampled_from(FORMS), st.data())
def test_every_cut_gives_the_same_records(sent: list[NatsDelivery], form: tuple[str, str], data: st.DataObject) -> None:
    stream = b"".join(frame(d, reply(i, form)) for i, d in enumerate(sent, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter, tail = DeliveryParser(SID), b""
    for low, high in pairwise([0, *cuts, len(stream)]):
        buffer = tail + stream[low:high]
        tail = buffer[cutter.take(buffer, 0, MANY) :]
    assert tail == b""
    held_to(cutter.take_buffer(), sent)


def test_a_change_of_form_in_mid_stream_is_read() -> None:
    """Redeliveries, and a server with a domain behind one without."""
    sent = [NatsDelivery("s.a", None, b"%d" % i) for i in range(6)]
    forms = [reply(1), reply(2, FORMS[2]), reply(3, delivered=2), reply(4, FORMS[1]), reply(5, FORMS[2]), reply(6)]
    held_to(cut_all(b"".join(frame(d, r) for d, r in zip(sent, forms, strict=True))), sent)


@each(
    "subject",
    [
        "",
        "$JS.ACK.S.C.1.1.1.1",  # too few tokens
        "$JS.ACK.S.C.1.1.1.1.1.1",  # ten are no form
        "$JS.ACK.h.a.S.C.1.1.1.1.1.x.y",
        "$JS.ACK.S.C.1.x.1.1.1",
        "$JS.ACK.S.C.1.-1.1.1.1",
        "$JS.ACK.S.C.1.1.1.1.",
        "$JS.ACK.S.C.1.1.1." + "9" * 20 + ".1",
        "_INBOX.a.b.1.1.1.1.1.1",
    ],
)
def test_what_is_no_delivery_is_left_alone(subject: str) -> None:
    assert read_reply(subject.encode()) is None
    data = frame(NatsDelivery("s.a", None, b"x"), subject or "-")
    assert DeliveryParser(SID).take(data, 0, MANY) == 0


def test_deliveries_of_another_subscription_are_left_alone() -> None:
    mine, other = NatsDelivery("s.a", None, b"mine"), NatsDelivery("s.a", None, b"other")
    data = frame(mine, reply(1)) + frame(other, reply(1), sid=77) + frame(mine, reply(2))
    cutter = DeliveryParser(SID)
    at = cutter.take(data, 0, MANY)
    assert at == len(frame(mine, reply(1)))
    at += len(frame(other, reply(1), sid=77))
    assert cutter.take(data, at, MANY) == len(data)
    held_to(cutter.take_buffer(), [mine, mine])


def test_a_buffer_takes_no_more_than_it_may() -> None:
    sent = [NatsDelivery("s.a", None, b"%d" % i) for i in range(7)]
    data, cutter, at = b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1)), DeliveryParser(SID), 0
    for part in (sent[:3], sent[3:6], sent[6:], []):
        at = cutter.take(data, at, 3)
        buffer = cutter.take_buffer()
        assert [bytes(payload) for payload in buffer.payloads] == [d.payload for d in part]
    assert at == len(data)


def test_headers_may_be_left_out() -> None:
    sent = [NatsDelivery("s", None, b""), NatsDelivery("s", [("A", ["1"])], b""), NatsDelivery("s", None, b"")]
    buffer = cut_all(b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1)))
    assert columns(buffer, headers=False).records.headers is None


def test_values_are_exact_and_what_is_not_text_does_not_crash() -> None:
    raw = b"NATS/1.0\r\nA:  two blanks\r\nB:none\r\nA: \r\nC: a: b\r\nno colon\r\n\xff: \xfe\xfd\r\n: nameless\r\n\r\n"
    assert read_block(raw) == [
        ("A", [" two blanks", ""]),
        ("B", ["none"]),
        ("C", ["a: b"]),
        (r"\xff", [r"\xfe\xfd"]),
        ("", ["nameless"]),
    ]
    assert read_block(b"") == []
    assert header_column([b"NATS/1.0\r\n\r\n", None, raw], 4).to_pylist()[:2] == [None, None]


BLOCKS = st.lists(
    st.one_of(
        st.none(),
        st.builds(block, HEADERS),
        st.sampled_from(
            [
                b"NATS/1.0\r\n\r\n",
                b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
                b"NATS/1.0\r\nA:1\r\nB:  2 \r\n\r\n",
                b"NATS/1.0\r\nA: \xff\r\n\r\n",
                b"NATS/1.0\r\nA: 1\r\nno colon\r\n\r\n",
                b"NATS/1.0\r\nA: 1\r\n",
                b"NATS/1.0\r\n\r\n\r\n",
                b"NATS/1.0",
                b"",
            ]
        ),
    ),
    max_size=8,
)


@examples(120)
@given(BLOCKS, st.integers(0, 2), st.booleans())
def test_headers_in_columns_are_those_read_one_by_one(blocks: list[bytes | None], behind: int, few: bool) -> None:
    expected = [read_block(b) or None if b else None for b in blocks] + [None] * behind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_FEW", 1 << 20 if few else 0)
        column = header_column(blocks, len(expected))
    column.validate(full=True)
    assert column.type == HEADERS_TYPE
    assert column.to_pylist() == expected
    assert column.null_count == expected.count(None)


def test_a_gap_in_the_numbers_of_the_consumer_is_seen() -> None:
    one = NatsDelivery("s", None, b"")
    with pytest.raises(OutOfOrder):
        columns(cut_all(frame(one, reply(1)) + frame(one, reply(3))))
    with pytest.raises(OutOfOrder):
        columns(cut_all(frame(one, reply(2)) + frame(one, reply(1))))
    found = columns(cut_all(frame(one, reply(4, pending=9)) + frame(one, reply(5, pending=0))))
    assert (found.first, found.pending) == (4, 0), "of the first and of the last"


def test_the_end_of_a_range_cuts_a_batch() -> None:
    sent = [NatsDelivery("s", [("A", ["1"])] if i == 2 else None, b"%d" % i) for i in range(3)]
    records = columns(cut_all(b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1)))).records
    assert records_up_to(records, 33).sequences.tolist() == [13, 23, 33]
    assert records_up_to(records, 32).payloads.to_pylist() == [b"0", b"1"]
    assert records_up_to(records, 32).headers is None
    assert len(records_up_to(records, 12)) == 0


@pytest.mark.parametrize("small", [b"", b"of a few bytes"])
def test_large_payloads_stay_where_they_were_read(small: bytes) -> None:
    sent = [NatsDelivery("s", [("A", ["1"])], bytes([i]) * (4096 + i)) for i in range(3)]
    sent += [NatsDelivery("s", None, small)] if small else []
    buffer = cut_all(b"".join(frame(d, reply(i)) for i, d in enumerate(sent, 1)))
    found = records_of(buffer, delivery_numbers(buffer), views=True)
    found.payloads.validate(full=True)
    assert pa.types.is_binary_view(found.payloads.type) is (not small)
    assert found.payloads.to_pylist() == [d.payload for d in sent]
    assert payload_sizes(found.payloads).tolist() == [len(d.payload) for d in sent]
    part = found.slice(1, 3)
    assert payload_sizes(part.payloads).tolist() == [4097, 4098]
    assert as_binary(part.payloads).to_pylist() == [d.payload for d in sent[1:3]]


@pytest.mark.parametrize("times", [1, 200])
def test_subjects_of_few_and_of_many_records(times: int) -> None:
    subjects = [b"s.a", b"s.\xff", b"s.\\xff", b"s.a"] * times
    sent = [b"MSG %b %d %b 0\r\n\r\n" % (subject, SID, reply(i).encode()) for i, subject in enumerate(subjects, 1)]
    assert columns(cut_all(b"".join(sent))).records.topics.to_pylist() == ["s.a", r"s.\xff", r"s.\xff", "s.a"] * times


# --- hostile -------------------------------------------------------------------------------------------------


def take_announced_sizes() -> None:
    for size in (b"99999999", b"999999999", b"9999999999", b"-1", b"1_0", b"+1", b"", b"0x1", b"\xb2"):
        assert DeliveryParser(SID).take(b"MSG s.a 7 %b %b\r\nabc" % (reply(1).encode(), size), 0, MANY) == 0, size


def test_announced_sizes_are_never_allocated() -> None:
    assert peak_of(take_announced_sizes).python < 100_000, "5 kB; the smallest of the large sizes is 100 MB"


@each(
    "data",
    [
        b"HMSG s.a 7 %b 9 5\r\nabcde\r\n",  # a header block larger than all
        b"HMSG s.a 7 %b 5\r\nabcde\r\n",  # one size where two belong
        b"MSG s.a 7 %b 2 5\r\nabcde\r\n",  # two where one belongs
        b"MSG s.a 7 %b 5\r\nabcdeXXXX",  # longer than announced
        b"msg s.a 7 %b 5\r\nabcde\r\n",
        b"XMSG s.a 7 %b 5\r\nabcde\r\n",
    ],
)
def test_malformed_deliveries_are_left_to_the_protocol(data: bytes) -> None:
    malformed = data % reply(2).encode()
    cutter = DeliveryParser(SID)
    good = frame(NatsDelivery("s.a", None, b"x"), reply(1))
    assert cutter.take(good + malformed, 0, MANY) == len(good)
    assert len(cutter.take_buffer()) == 1
    assert DeliveryParser(SID).take(malformed, 0, MANY) == 0


@examples(120, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.data())
def test_hostile_bytes_never_crash(noise: bytes, data: st.DataObject) -> None:
    good = b"".join(frame(NatsDelivery("s", [("A", ["b"])] if i % 2 else None, b"xyz"), reply(i)) for i in range(1, 5))
    where, width = data.draw(st.integers(0, len(good))), data.draw(st.integers(0, 30))
    stream = good[:where] + noise + good[where + width :]
    cutter = DeliveryParser(SID)
    assert 0 <= cutter.take(stream, 0, MANY) <= len(stream)
    buffer = cutter.take_buffer()
    if len(buffer):
        try:
            columns(buffer)
        except parser.ProtocolError:
            """Numbers that cannot be: said, not guessed."""


# --- holes ---------------------------------------------------------------------------------------------------

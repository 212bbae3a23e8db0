"""Records of received frames: gaps are found over a whole batch as they are message by message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mama_spark.contracts.record_log import Records
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.sequence_numbers import UNCOUNTED
from mama_spark.mama.messages.status import MsgType
from mama_spark.openmama.recorder.frame_recorder import FrameRecorder, RecordPacker
from mama_spark.openmama.recorder.gaps import GapTracker
from mama_spark.openmama.wire import frame_filter
from mama_spark.openmama.wire.frame_filter import FrameFilter, PeerCounters, ReceivedFrame
from mama_spark.openmama.wire.frames import FRAMINGS, OZ, Framing
from mama_spark.openmama.wire.market_data import Stamp, stamped
from mama_spark.openmama.wire.records import MamaGapCause, MamaRecordKind, decode_records
from mama_spark.openmama.wire.subscriptions import OpenInboxes
from mama_spark.packing.pack_headers import rows_of_messages
from mama_spark.packing.unpacker import unpack

from tests.support.openmama.frames import columns_of
from tests.support.tiers import examples

Sent = tuple[str, int, int, int]  #: topic, sender, number, type


def frame(topic: str, sender: int, number: int, kind: int) -> ReceivedFrame:
    payload = encode(MamaMsg(stamped(Stamp(kind, number=number, sender=sender), []).fields))
    head = OZ.publish_head(topic)
    return ReceivedFrame(topic, head + payload, len(head), OZ)


def one_by_one(sent: list[Sent]) -> list[tuple[str, int, int, int]]:
    """Topic, sender, first and last number of each gap, in order."""
    tracker, gaps = GapTracker(), []
    for topic, sender, number, kind in sent:
        found = tracker.update(topic, sender, number, 0 if kind in UNCOUNTED else 1) if number else None
        if found is not None:
            gaps.append((topic, sender, found.first, found.last))
    return gaps


@pytest.mark.spec("OW29")
@examples(30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["A", "B"]), st.sampled_from([1, 2**63]), st.integers(0, 6),
                  st.sampled_from([int(MsgType.UPDATE)] * 5 + [int(MsgType.RECAP), int(MsgType.SNAPSHOT)])),
        max_size=40,
    ),
    st.integers(1, 40),
)  # fmt: skip
@example(
    [("A", 1, 4, int(MsgType.UPDATE)), ("A", 1, 5, int(MsgType.SNAPSHOT)), ("A", 1, 7, int(MsgType.BOOK_RECAP))], 9
)
@example([("A", 1, number, int(MsgType.UPDATE)) for number in (4, 0, 5, 0)], 9)
@example([("A", 1, number, int(MsgType.RECAP)) for number in (4, 0, 5, 0)], 9)
def test_gaps_of_a_batch_are_those_of_its_messages(sent: list[Sent], size: int) -> None:
    recorder, gaps, frames = FrameRecorder("mama", "oz"), [], []
    for begin in range(0, len(sent), size):
        batch = [frame(*one) for one in sent[begin : begin + size]]
        made = recorder.records(columns_of(batch), {}, 7)
        decoded = decode_records(made.payloads)
        topics = made.topics.to_pylist()
        for row, topic in enumerate(topics):
            head = decoded.heads[row]
            if head["kind"] == MamaRecordKind.GAP:
                gaps.append((topic.removeprefix("mama."), int(head["sender"]), int(head["first"]), int(head["last"])))
                assert head["cause"] == MamaGapCause.WAY
                assert topics[row + 1] == topic, "it stands before the message that shows it"
            else:
                frames.append((topic.removeprefix("mama."), decoded.body(row)))
    assert gaps == one_by_one(sent)
    assert frames == [(one[0], frame(*one).raw) for one in sent]


@pytest.mark.parametrize("name", ["oz", "zmq"])
@pytest.mark.spec("OW12")
def test_known_heads_are_those_of_accepted_topics(name: str) -> None:
    framing = FRAMINGS[name]
    one, counters = _filter_of("FOO", framing=framing)
    good = framing.publish_head("FOO") + b"O\x02\x00"
    for _ in range(3):
        found = one.accepted(good)
        assert found is not None
        assert (found.topic, found.raw[found.payload_at :]) == ("FOO", b"O\x02\x00")
        assert found.frame == framing.decode(good)
        assert one.accepted(framing.publish_head("FOOBAR") + b"O\x02\x00") is None
        assert one.accepted(framing.publish_head("FOO")) is None, "without a payload"
        assert one.accepted(b"FOO") is None
    assert (counters.neighbours, counters.malformed) == (3, 6)
    one.remove("FOO")
    assert one.accepted(good) is None


@examples(30)
@given(st.lists(st.sampled_from(["FOO", "BAR", "FOOBAR", "Qpid", "no frame"]), max_size=60), st.integers(1, 3))
def test_many_messages_in_columns_are_those_that_are_accepted_one_by_one(kinds: list[str], most: int) -> None:
    raws = {topic: OZ.publish_head(topic) + b"O\x02\x00" for topic in ("FOO", "BAR", "FOOBAR")}
    raws |= {"Qpid": OZ.publish_head("FOO") + b"Q\x00", "no frame": b"FOO"}
    sent = [raws[kind] for kind in kinds]
    (one, each), (many, together) = [_filter_of("FOO", "BAR") for _ in range(2)]
    expected = [found for found in map(one.accepted, sent) if found is not None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_filter, "MAX_HEADS", most)
        columns = many.columns(sent)
    assert columns.raws == [found.raw for found in expected]
    assert [columns.topics[code] for code in columns.codes] == [found.topic for found in expected]
    assert columns.payload_at.tolist() == [found.payload_at for found in expected]
    assert together == each


def _filter_of(*topics: str, framing: Framing = OZ) -> tuple[FrameFilter, PeerCounters]:
    counters = PeerCounters()
    one = FrameFilter(framing, OpenInboxes(framing, "0" * 8 + "-0000-0000-0000-" + "0" * 12), counters)
    for topic in topics:
        one.add(topic, prefix=False)
    return one, counters


# --- records of one topic in one message: topic by topic in order, what comes out of the packs is what went in ---

TOPICS = ["mama.A", "mama.B", "mama._dictionary.OM"]


def by_topic(topics: list[str], payloads: list[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for topic, payload in zip(topics, payloads, strict=True):
        found.setdefault(topic, []).append(payload)
    return found


@examples(50)
@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=40)), min_size=1, max_size=60),
    st.integers(1, 9), st.integers(700, 1500),
)  # fmt: skip
def test_no_record_is_lost_and_each_topic_keeps_its_order(
    sent: list[tuple[str, bytes]], max_rows: int, max_bytes: int
) -> None:
    topics, payloads = [topic for topic, _ in sent], [payload for _, payload in sent]
    packer, came = RecordPacker(max_rows, max_bytes, ("mama._dictionary",)), dict[str, list[bytes]]()
    for batch in packer.messages(pa.array(topics).dictionary_encode(), pa.array(payloads, pa.binary())):
        rows = rows_of_messages(batch)
        assert rows.max() <= max_rows
        none = np.zeros(len(batch), np.int64)
        found = unpack(Records(none, none, batch.topics, batch.payloads, batch.headers))
        assert not found.errors
        assert len(found) == rows.sum()
        names = batch.topics.to_pylist()
        for topic, values in by_topic([names[row] for row in found.records], found.values.to_pylist()).items():
            came.setdefault(topic, []).extend(values)
        packed = {name for name, n in zip(names, rows.tolist(), strict=True) if n > 1}
        assert not any("_dictionary" in name for name in packed), "readers look for dictionaries by their topic"
    assert came == by_topic(topics, payloads)

"""Format of log records, the records that a recorder makes, and its settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.subscription_events import QueueOverflow, SubscriptionEvent, decode_events
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.events.event_codec import CallInfo, Event, write_except
from mama_spark.tango.events.event_codec import encode as encode_event
from mama_spark.tango.events.sequence_tracker import SequenceGap, SequenceRestart
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.log.device_states import RecordedDevice
from mama_spark.tango.log.record_builder import RecordBuilder
from mama_spark.tango.log.recorder_state import BadState, RecorderState
from mama_spark.tango.log.records import (
    HEAD_SIZE,
    BadEventRecord,
    DecodedRecords,
    GapCause,
    RecordFrames,
    RecordHeads,
    RecordKind,
    decode,
    encode,
    errors_of,
    newest_state,
    parse_record_topic,
    record_topic,
    writer_topic,
)
from mama_spark.tango.log.recovery import WriterState
from mama_spark.tango.recorder.other_recorders import about, conflict
from mama_spark.tango.recorder.settings import TangoRecorderSettings
from mama_spark.tango.topics import Topic, event_topic, parse
from mama_spark.tango.types import AttributeValue, DataType, DevError, EventType, Quality, Severity, ValueKind

from tests.support.tables import each
from tests.support.tango.records import encode_one

octets, I64 = st.binary(max_size=40), st.integers(-(2**63), 2**63 - 1)
row = st.one_of(st.just((b"", b"", b"", b"")), st.tuples(st.binary(min_size=1, max_size=40), octets, octets, octets))

# --- payloads ----------------------------------------------------------------------------------------------


@given(st.lists(row, min_size=1, max_size=20), st.sampled_from(RecordKind), st.integers(0, 2**32 - 1), I64)
def test_what_is_written_is_read(frames: list[tuple[bytes, ...]], kind: RecordKind, ctr: int, at: int) -> None:
    columns = map(list, zip(*frames, strict=True))
    found = decode(encode(RecordHeads(kind, at, ctr, ctr, 5, -1, GapCause.WAY), RecordFrames(*columns)))
    assert not found.bad
    assert list(zip(*found.frames.columns(), strict=True)) == frames
    numbers = (found.kind, found.received, found.ctr, found.first, found.last, found.count, found.cause)
    assert [set(column.tolist()) for column in numbers] == [{kind}, {at}, {ctr}, {ctr}, {5}, {-1}, {GapCause.WAY}]


@given(st.lists(st.binary(max_size=120), max_size=5))
def test_foreign_bytes_are_bad_and_leave_their_neighbours_alone(foreign: list[bytes]) -> None:
    good = encode_one(RecordKind.EVENT, 7, [b"t", b"o", b"c", b"d"], ctr=9)
    found = decode(pa.array([good, *foreign, good], pa.binary()))
    assert sorted(found.bad) == list(range(1, len(foreign) + 1))
    assert (found.ctr[0], found.ctr[-1], found.frames.datas[-1]) == (9, 9, b"d")
    assert not any(found.kind[row] or found.frames.topics[row] for row in found.bad)


@given(st.integers(0, HEAD_SIZE - 1), st.integers(1, 255))
def test_a_changed_head_is_never_read_as_another_length(at: int, change: int) -> None:
    good = bytearray(encode_one(RecordKind.EVENT, 7, [b"topic", b"o", b"call", b"data"]))
    good[at] ^= change
    found = decode(pa.array([bytes(good)], pa.binary()))
    if not found.bad:
        assert sum(len(column[0]) for column in found.frames.columns()) == 14


def test_slices_nulls_and_large_arrays_are_read() -> None:
    frames = RecordFrames([b"t"] * 5, [b""] * 5, [b""] * 5, [b""] * 5)
    payloads = encode(RecordHeads(RecordKind.EVENT, np.arange(5), np.arange(5)), frames)
    assert decode(payloads.slice(2, 2)).ctr.tolist() == [2, 3]
    assert decode(payloads.cast(pa.large_binary())[1:]).ctr.tolist() == [1, 2, 3, 4]
    assert list(decode(pa.array([None, payloads[1].as_py()], pa.binary())).bad) == [0]
    assert len(decode(pa.array([], pa.binary()))) == 0


def test_the_layout_is_the_one_of_the_page() -> None:
    octets = encode_one(RecordKind.GAP, 1, [b"T"], ctr=2, first=3, last=4, count=5, cause=GapCause.BUFFER)
    assert octets.hex() == (
        "4d54474f" "01" "05" "03" "03" "0100000000000000" "02000000" "03000000" "04000000" "0500000000000000"
        "01000000" "00000000" "00000000" "00000000" "54"
    )  # fmt: skip


# --- topics ------------------------------------------------------------------------------------------------

_LETTERS = [c for c in map(chr, range(33, 256)) if c not in "/#" and c == c.lower() and c.isprintable()]
names = st.text(st.sampled_from(_LETTERS), min_size=1)


@given(names, names, names, names, st.sampled_from([e for e in EventType if e is not EventType.INTERFACE_CHANGE]))
def test_topics_are_seven_tokens_and_reversible(
    host: str, domain: str, member: str, name: str, event: EventType
) -> None:
    device = f"{domain}/-/{member}"
    text = record_topic(Topic(host, device, name, event))
    assert len(text.split(".")) == 7
    assert text.isascii()
    assert not any(c in "*> \t" for c in text)
    assert parse_record_topic(text) == ("tango", host, device, name, event.wire_name)


def test_gaps_restarts_and_states_have_tokens_of_their_own() -> None:
    topic = event_topic("vm:1", "a/b/c", "x", EventType.CHANGE, False)
    assert record_topic(topic, "p", RecordKind.GAP) == "p.vm:1.a.b.c.x.gap"
    assert record_topic(topic, "p", RecordKind.RESTART) == "p.vm:1.a.b.c.x.restart"
    interface = event_topic("vm:1", "a/b/c", None, EventType.INTERFACE_CHANGE)
    assert record_topic(interface) == "tango.vm:1.a.b.c.-.intr_change"
    assert writer_topic("one") == "tango.one"


@each("text", ["", "tango", "tango.recorder", "tango.h.a.b.c.x.nothing", "tango..a.b.c.x.change"])
def test_other_topics_are_refused(text: str) -> None:
    with pytest.raises(BadEventRecord):
        parse_record_topic(text)


# --- state ---------------------------------------------------------------------------------------------

CHANGE = event_topic("vm:1", "a/b/c", "x", EventType.CHANGE, False)
SUBSCRIPTION = SimpleNamespace(
    device=parse_device("tango://vm:1/a/b/c#dbase=no"), attribute="x", event=EventType.CHANGE, topic=str(CHANGE)
)
ERRORS = (DevError("Broken", Severity.ERR, "it broke", "here"),)


def event(
    ctr: int, quality: Quality = Quality.VALID, errors: tuple[DevError, ...] = (), topic: Topic = CHANGE
) -> SubscriptionEvent:
    value = AttributeValue("x", ValueKind.DOUBLE, np.array([1.0]), 5, quality, data_type=DataType.DOUBLE)
    frames = encode_event(Event(topic, CallInfo(ctr, bool(errors)), None if errors else value, errors))
    return SubscriptionEvent(SUBSCRIPTION, Kind.EVENT, 100 + ctr, frames, ctr)


def delivered(kind: Kind, detail: Any = None) -> SubscriptionEvent:
    return SubscriptionEvent(SUBSCRIPTION, kind, 50, None, 0, detail)


def record(state: RecorderState, *given: SubscriptionEvent) -> DecodedRecords:
    return read(state.record(decode_events(list(given), BatchDecoder())))


def read(records: RecordBuilder) -> DecodedRecords:
    return decode(records.messages().payloads) if len(records) else decode(pa.array([], pa.binary()))


def kinds(found: DecodedRecords) -> list[RecordKind]:
    return [RecordKind(kind) for kind in found.kind.tolist()]


def written(state: RecorderState) -> dict[str, Any]:
    found = newest_state(list(read(state.state(1)).frames.datas))
    assert found is not None
    return found[0]


def restored(state: RecorderState) -> RecorderState:
    """The next recorder, after a state was written."""
    after = RecorderState(state.name)
    after.restore(written(state), ())
    return after


@pytest.mark.spec("TG-46")
def test_a_gap_that_the_subscriber_saw_is_written_before_the_event() -> None:
    found = record(RecorderState("r"), event(1), delivered(Kind.GAP, SequenceGap(2, 4)), event(5))
    assert kinds(found) == [RecordKind.EVENT, RecordKind.GAP, RecordKind.EVENT]
    assert (found.first[1], found.last[1], found.count[1], found.cause[1]) == (2, 4, 3, GapCause.WAY)
    assert found.frames.topics[1] == CHANGE.encode()


@each(
    ("last", "first", "wanted"),
    [
        (5, 6, None), (2**32 - 1, 0, None), (5, 9, (RecordKind.GAP, 6, 8, 3)), (5, 2, (RecordKind.RESTART, 5, 2, -1)),
        (5, 5, (RecordKind.RESTART, 5, 5, -1)), (5, 0, None),
    ],
)  # fmt: skip
def test_the_next_recorder_reports_events_sent_between_recorders(
    last: int, first: int, wanted: tuple[int, ...] | None
) -> None:
    state = RecorderState("r")
    record(state, event(last))
    found = record(restored(state), event(first), event(first + 1))
    if wanted is None:
        assert kinds(found) == [RecordKind.EVENT, RecordKind.EVENT]
    else:
        assert kinds(found)[1:] == [RecordKind.EVENT, RecordKind.EVENT]
        assert (found.kind[0], found.first[0], found.last[0], found.count[0]) == wanted
        assert found.cause[0] == GapCause.AWAY


@each(("last", "sent", "wanted"), [(5, 9, RecordKind.GAP), (5, 5, None), (5, 2, RecordKind.RESTART)])
def test_what_was_sent_between_recorders_is_told_though_no_event_follows(
    last: int, sent: int, wanted: RecordKind | None
) -> None:
    state = RecorderState("r")
    record(state, event(last))
    after = restored(state)
    found = record(after, delivered(Kind.CHECK)._replace(ctr=sent))
    assert kinds(found) == ([] if wanted is None else [wanted])
    assert all(found.cause == GapCause.AWAY)
    assert kinds(record(restored(after), event(sent + 1))) == [RecordKind.EVENT]


def test_a_gap_at_the_end_is_not_told_again_by_the_next_recorder() -> None:
    state = RecorderState("r")
    record(state, event(5), delivered(Kind.GAP, SequenceGap(6, 8)))
    assert kinds(record(restored(state), event(10))) == [RecordKind.GAP, RecordKind.EVENT]
    assert kinds(record(restored(state), event(9))) == [RecordKind.EVENT]


def test_a_value_that_a_check_delivers_is_no_event() -> None:
    found = record(RecorderState("r"), event(0)._replace(kind=Kind.CHECK))
    assert (kinds(found), found.ctr.tolist()) == ([RecordKind.CHECKED], [0])


def test_records_behind_the_last_state_count_too() -> None:
    state, after = RecorderState("r"), RecorderState("r")
    before = written(state)
    behind = record(state, delivered(Kind.ONLINE), event(7))
    after.restore(before, [behind])
    assert after._devices.as_dict() == state._devices.as_dict()
    assert kinds(record(after, event(9))) == [RecordKind.GAP, RecordKind.EVENT]


def test_a_state_of_many_topics_is_in_parts_that_fit_together() -> None:
    state = RecorderState("r")
    state.restore({"counters": {f"t{n}": n for n in range(9000)}, "devices": [], "hosts": {}}, ())
    parts = list(read(state.state(1)).frames.datas)
    assert len(parts) == 3
    found = newest_state([parts[2], *parts, parts[0]])
    assert found is not None
    assert found[0]["counters"] == {f"t{n}": n for n in range(9000)}
    assert newest_state([parts[0], parts[2]]) is None
    broken = [orjson.dumps(orjson.loads(parts[0]) | {"counters": counters}) for counters in (None, [1])]
    assert newest_state([*broken, b"{}"]) is None


@each("more", [{"counters": 3}, {"devices": [("h:1", "a/b/c", True, "BORED")]}, {"owed": [["t", "x"]]}])
def test_a_state_that_is_none_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadState):
        RecorderState("r").restore({"counters": {}, "devices": [], "hosts": {}, **more}, ())


def test_restarts_and_overflows_are_recorded() -> None:
    state = RecorderState("r")
    overflow = delivered(Kind.OVERFLOW, QueueOverflow(4, 2, 5))
    found = record(state, delivered(Kind.RESTART, SequenceRestart(9, 1)), overflow)
    assert kinds(found) == [RecordKind.RESTART, RecordKind.GAP]
    assert (found.first.tolist(), found.last.tolist(), found.count.tolist()) == ([9, 2], [1, 5], [-1, 4])
    assert found.cause[1] == GapCause.BUFFER
    assert state.gaps == 1


@pytest.mark.spec("TG-36", "TG-41")
def test_a_device_is_written_when_it_changes_and_only_then() -> None:
    state = RecorderState("r")
    lives = (RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.OFFLINE)

    def after(*given: SubscriptionEvent) -> list[RecordKind]:
        return [kind for kind in kinds(record(state, *given)) if kind in lives]

    assert after(delivered(Kind.ONLINE), event(1), event(2)) == [RecordKind.ONLINE]
    assert after(event(3, errors=ERRORS), event(4, errors=ERRORS)) == [RecordKind.SUSPECT]
    assert after(event(1, topic=event_topic("vm:1", "a/b/c", "y", EventType.CHANGE, False))) == []
    assert after(event(5), event(6)) == [RecordKind.ONLINE]
    assert after(event(7, Quality.INVALID)) == [RecordKind.SUSPECT]
    assert after(delivered(Kind.OFFLINE)) == [RecordKind.OFFLINE]
    assert after(delivered(Kind.ERROR, ERRORS)) == []
    assert after(delivered(Kind.ONLINE), event(8)) == [RecordKind.ONLINE]


def test_why_a_device_is_suspect_stands_in_its_record() -> None:
    found = record(RecorderState("r"), delivered(Kind.ONLINE), event(1, errors=ERRORS))
    assert errors_of(found, 2) == ERRORS
    assert errors_of(found, 0) == ()
    assert found.frames.datas[2] == write_except(ERRORS)


def test_an_offline_device_names_why_its_heartbeats_are_missing_not_an_error_of_before() -> None:
    ended = (DevError("API_EventTimeout", Severity.ERR, "the heartbeat connection ended", ""),)
    refused = (DevError("API_CantConnectToDevice", Severity.ERR, "Connection refused", ""),)
    offline = [delivered(Kind.OFFLINE, cause) for cause in (ended, ended, refused, refused)]
    found = record(RecorderState("r"), delivered(Kind.ONLINE), event(1, errors=ERRORS), *offline)
    assert kinds(found)[-2:] == [RecordKind.OFFLINE, RecordKind.OFFLINE]
    assert [errors_of(found, row) for row in range(-3, 0)] == [ERRORS, ended, refused]


def test_of_equal_errors_in_a_row_the_first_is_recorded_and_the_rest_are_summed_up() -> None:
    found = record(RecorderState("r", error_period=60.0), *(event(n, errors=ERRORS) for n in range(1, 6)), event(6))
    series = [row for row, kind in enumerate(kinds(found)) if kind in (RecordKind.EVENT, RecordKind.ERROR)]
    first, summary, last = series
    assert (found.ctr[first], found.ctr[last]) == (1, 6)
    assert (found.kind[summary], found.first[summary], found.last[summary], found.count[summary]) == (
        RecordKind.ERROR, 2, 5, 4,
    )  # fmt: skip
    assert errors_of(found, summary) == ERRORS


def test_a_server_is_called_as_it_calls_itself() -> None:
    state = RecorderState("r")
    away = SimpleNamespace(**{**vars(SUBSCRIPTION), "device": parse_device("tango://127.0.0.1:1/a/b/c#dbase=no")})
    away.topic = None
    failed = delivered(Kind.ERROR, ERRORS)._replace(subscription=away)
    assert parse(record(state, failed).frames.topics[0].decode()).tango_host == "127.0.0.1:1"
    away.topic = str(CHANGE)
    record(state, delivered(Kind.ONLINE)._replace(subscription=away))
    assert [device.tango_host for device in state._devices.as_dict()] == ["vm:1"]
    away.topic = None
    assert parse(record(restored(state), failed).frames.topics[0].decode()).tango_host == "vm:1"


def test_a_device_that_is_not_recorded_any_more_is_offline() -> None:
    state = RecorderState("r")
    record(state, delivered(Kind.ONLINE))
    found = read(restored(state).started(9, lambda name: name == "other/device/1"))
    assert kinds(found) == [RecordKind.STARTED, RecordKind.OFFLINE]
    record(state, delivered(Kind.OFFLINE))
    assert kinds(read(restored(state).started(9, lambda name: False))) == [RecordKind.STARTED]


# --- what the log would not take ---------------------------------------------------------------------------


def some(found: DecodedRecords, *wanted: int) -> DecodedRecords:
    """The records with these indices."""
    frames = RecordFrames(*([column[row] for row in wanted] for column in found.frames.columns()))
    names = ("kind", "cause", "received", "ctr", "first", "last", "count")
    return DecodedRecords(**{name: getattr(found, name)[list(wanted)] for name in names}, frames=frames)


def gaps(found: DecodedRecords) -> list[tuple[int, int, int, int]]:
    return list(zip(*(getattr(found, n).tolist() for n in ("first", "last", "count", "cause")), strict=True))


@pytest.mark.spec("TG-46")
def test_rejected_records_are_reported_until_the_log_accepts_the_report() -> None:
    """Events, values that were read, and gaps that were not reported."""
    state = RecorderState("r")
    made = record(state, *map(event, range(1, 6)))
    state.refused(some(made, 1, 2))
    state.refused(some(made, 4))
    told_once = read(state.report_pending(9))
    assert (kinds(told_once), gaps(told_once)) == ([RecordKind.GAP], [(2, 5, 3, GapCause.REFUSED)])
    assert told_once.frames.topics == [CHANGE.encode()]
    assert not len(state.report_pending(9))
    state.refused(record(state, event(6)))
    state.refused(told_once)  # later than what came after it
    again = read(state.report_pending(9))
    assert gaps(again) == [(2, 6, 4, GapCause.REFUSED)]
    state.refused(again)
    state.refused(record(state, delivered(Kind.RESTART, SequenceRestart(9, 1))))
    assert gaps(read(state.report_pending(9))) == [(2, 6, -1, GapCause.REFUSED)]


def test_pending_gaps_survive_a_restart_of_the_recorder() -> None:
    state = RecorderState("r")
    state.refused(record(state, *map(event, (1, 2))))
    after = restored(state)
    assert gaps(read(after.report_pending(9))) == [(1, 2, 2, GapCause.REFUSED)]


def test_counters_show_gaps_that_a_killed_recorder_did_not_report() -> None:
    state = RecorderState("r")
    made = record(state, *map(event, range(1, 10)), delivered(Kind.GAP, SequenceGap(10, 11)), event(12))
    state.refused(some(made, 2, 3, 7))
    refused = read(state.report_pending(9))

    def after(*parts: DecodedRecords) -> list[tuple[int, int, int, int]]:
        state = RecorderState("r")
        state.restore(None, parts)
        return gaps(read(state.report_pending(9)))

    stored = some(made, 0, 1, 4, 5, 6, 8, 9, 10)
    assert after(stored) == [(3, 8, 3, GapCause.REFUSED)]
    assert after(stored, refused) == []
    assert after(some(made, 8), some(made, 9, 10)) == []  # that gap was told
    assert after(some(made, 0, 3, 2, 1, 4)) == []  # a log that keeps no order
    assert after(some(made, 0, 3, 1, 4)) == [(2, 3, 1, GapCause.REFUSED)]


@pytest.mark.spec("TG-15")
def test_counters_of_users_make_no_gaps() -> None:
    ready = Topic(CHANGE.tango_host, CHANGE.device, CHANGE.attribute, EventType.DATA_READY, CHANGE.dbase)
    after = RecorderState("r")
    made = [encode_one(RecordKind.EVENT, 5, [ready.encode(), b"\1", b"c" * 21, b"d"], ctr=ctr) for ctr in (3, 900)]
    after.restore(None, [decode(pa.array(made, pa.binary()))])
    assert not len(after.report_pending(9))


def test_the_next_recorder_does_not_repeat_a_reported_gap() -> None:
    state = RecorderState("r")
    made = record(state, event(5), event(6), event(7))
    state.refused(some(made, 1, 2))
    after = RecorderState("r")
    after.restore(None, [some(made, 0), read(state.report_pending(9))])
    assert kinds(record(after, event(8))) == [RecordKind.EVENT]


def test_the_state_of_a_device_that_the_log_refused_is_written_again() -> None:
    state = RecorderState("r")
    state.refused(record(state, delivered(Kind.ONLINE)))
    assert kinds(read(state.report_pending(9))) == [RecordKind.ONLINE]
    assert not len(state.report_pending(9))


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_are_read_and_patterns_matched() -> None:
    found = TangoRecorderSettings.of(
        {"url": "tango://Host:10000", "devices": "A/b/C, a/b/d", "attributes": ["X", "a/b/c/y*"], "stateEvery": "5s",
         "events": "user,alarm", "bufferBytes": "2 MiB"}
    )  # fmt: skip
    assert found.buffer_bytes == 2 << 20
    assert (found.host, found.devices, found.dbase, found.state_every) == ("host:10000", ("a/b/c", "a/b/d"), True, 5.0)
    assert found.events == (EventType.USER, EventType.ALARM)
    assert found.attributes_of("a/b/c") == (["x"], ["y*"])
    assert found.attributes_of("a/b/d") == (["x"], [])
    without = TangoRecorderSettings.of({"url": "tango://h:1#dbase=no", "devices": "a/b/c"})
    assert without.full_name("a/b/c") == "tango://h:1/a/b/c#dbase=no"


@each(
    ("url", "other", "same"),
    [
        ("tango://a:1,b:2", "tango://a:1,b:2", True),
        ("tango://a:1,b:2", "tango://b:2,a:1", True),  # servers and recorders may name them in another order
        ("tango://a:1,b:2", "tango://b:2", True),
        ("tango://a:1", "tango://b:2", False),
        ("tango://a:1", "tango://a:1#dbase=no", False),
    ],
)
def test_addresses_of_one_database_are_one_host(url: str, other: str, same: bool) -> None:
    """Of devices that the log tells of, and of another recorder of it."""
    mine, theirs = (TangoRecorderSettings.of({"url": one, "devices": "d/f/m"}) for one in (url, other))
    assert mine.records(RecordedDevice(theirs.host, "d/f/m", theirs.dbase)) is same
    for one, another in ((mine, theirs), (theirs, mine)):
        state = WriterState({"devices": [], "recorder": about(another, 0)}, 1, 1, 0, stopped=False)
        assert (conflict(one, "tango.writer.r", {"tango.writer.other": state}, 0) is not None) is same


def test_pipes_are_named() -> None:
    given = {"url": "tango://h:1", "devices": "a/b/c", "events": "pipe,intr_change", "attributes": "P"}
    assert TangoRecorderSettings.of(given).attribute_events == [EventType.PIPE]


def test_devices_are_names_or_patterns() -> None:
    found = TangoRecorderSettings.of({"url": "tango://h:1", "devices": "A/b/C, sys/tg_test/*, x/[yz]/1"})
    assert (found.named_devices, found.device_patterns) == (["a/b/c"], ["sys/tg_test/*", "x/[yz]/1"])
    assert all(map(found.wants, ("a/b/c", "sys/tg_test/2", "x/y/1")))
    assert not any(map(found.wants, ("a/b/d", "sys/tg_tes/2", "x/w/1")))


@each(
    ("wrong", "word"),
    [
        ({"url": "tango://host", "devices": "a/b/c"}, "host:port"),
        ({"url": "tango://h:1"}, "devices"),
        ({"devices": "a/b/c"}, "url"),
        ({"url": "tango://h:1", "devices": "a/b"}, "a/b"),
        ({"url": "tango://h:1", "devices": "a/b/c", "events": "quality"}, "events"),
        ({"url": "tango://h:1", "devices": "a/b/c", "prefix": "a.b"}, "prefix"),
        ({"url": "tango://h:1", "devices": "a/b/c", "buffer": 0}, "buffer"),
        ({"url": "tango://h:1", "devices": "a/b/c", "bufferBytes": "1 MB"}, "bufferBytes"),
        ({"url": "tango://h:1#dbase=no", "devices": "a/b/c,a/b/*"}, r"a/b/\* needs a database"),
        ({"url": "tango://h:1", "devices": "a/b/c", "stateevry": "1s"}, "stateEvery"),
        ({"url": "tango://h:1", "devices": "a/b/c", "events": "pipe"}, "pipe needs"),
        ({"url": "tango://h:1", "devices": "a/b/c", "events": "pipe,change", "attributes": "p"}, "pipe needs"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        TangoRecorderSettings.of(wrong)

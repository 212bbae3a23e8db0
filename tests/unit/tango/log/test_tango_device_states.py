"""States of recorded devices: the records of changes by heartbeats, errors and rejected records."""

from __future__ import annotations

import pytest
from mama_spark.tango.log.device_states import DeviceStates, RecordedDevice
from mama_spark.tango.log.record_builder import RecordBuilder
from mama_spark.tango.log.records import RecordKind, decode, errors_of
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import DevError, EventType, Severity

TOPIC = event_topic("h:1", "a/b/c", "x", EventType.CHANGE, False)
DEVICE = RecordedDevice.of(TOPIC)
ERRORS = (DevError("Broken", Severity.ERR, "it broke", "here"),)


def kinds(records: RecordBuilder) -> list[RecordKind]:
    return [RecordKind(kind) for kind in records.kinds]


def test_an_error_makes_a_device_suspect_until_the_topic_has_a_value_again() -> None:
    states, records = DeviceStates("tango"), RecordBuilder()
    states.availability(records, TOPIC, True, 1)
    states.succeeded(records, DEVICE, TOPIC.encode(), 2)  # had no error
    states.failed(records, DEVICE, TOPIC.encode(), ERRORS, 3)
    assert states.any_errors()
    states.succeeded(records, DEVICE, b"another topic", 4)
    states.succeeded(records, DEVICE, TOPIC.encode(), 5)
    assert kinds(records) == [RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.ONLINE]
    assert not states.any_errors()


def test_an_offline_device_names_why_its_heartbeats_are_missing_not_an_error_of_before() -> None:
    states, records = DeviceStates("tango"), RecordBuilder()
    refused = (DevError("API_CantConnectToDevice", Severity.ERR, "Connection refused", ""),)
    states.availability(records, TOPIC, True, 1)
    states.failed(records, DEVICE, TOPIC.encode(), ERRORS, 2)
    ended = (DevError("API_EventTimeout", Severity.ERR, "the heartbeat connection ended", ""),)
    for cause in (ended, ended, refused, refused):
        states.availability(records, TOPIC, False, 3, cause)
    assert kinds(records) == [RecordKind.ONLINE, RecordKind.SUSPECT, RecordKind.OFFLINE, RecordKind.OFFLINE]
    written = decode(records.messages().payloads)
    assert [errors_of(written, row) for row in (1, 2, 3)] == [ERRORS, ended, refused]


def test_a_device_that_is_not_recorded_any_more_is_set_offline_once() -> None:
    states = DeviceStates("tango")
    offline = RecordedDevice("h:1", "d/e/f", True)
    states.replay(DEVICE, RecordKind.ONLINE)
    states.replay(offline, RecordKind.OFFLINE)
    records = RecordBuilder()
    states.end_unless(records, lambda device: False, "gone", 1)
    assert kinds(records) == [RecordKind.OFFLINE]
    assert states.as_dict() == {}


def test_a_state_that_the_log_refused_is_written_again_unless_the_device_has_ended() -> None:
    states, records = DeviceStates("tango"), RecordBuilder()
    states.availability(records, TOPIC, True, 1)
    states.refused(DEVICE)
    states.refused(RecordedDevice("h:1", "never/known/1", True))
    again = RecordBuilder()
    for now in (2, 3):
        states.write_refused(again, now)
    assert kinds(again) == [RecordKind.ONLINE]


def test_a_written_state_is_restored() -> None:
    states, after = DeviceStates("tango"), DeviceStates("tango")
    states.availability(RecordBuilder(), TOPIC, True, 1)
    after.restore(states.state())
    assert after.as_dict() == states.as_dict() == {DEVICE: RecordKind.ONLINE}
    with pytest.raises(KeyError):
        after.restore([("h:1", "a/b/c", True, "BORED")])

"""Source discovery: the image, its end, and changes; on which queue they come."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mama_spark.bridge import SourceKey
from mama_spark.mama import (
    MamaMsg,
    Queue,
    SourceDiscovery,
    SourceDiscoveryCallbacks,
    StatusError,
)
from mama_spark.mama.messages.source_records import (
    OFFLINE,
)
from mama_spark.testing.waiting import until

from tests.support.mama.mama_discovery import TTL, DiscoveryRecorder, MamaDiscoverySetup, as_bytes, record


@pytest.mark.spec("SD-01", "SD-02", "SD-04-SD-12", "SD-14", "SD-16", "SD-17", "SD-25", "SD-26", "SD-30", "SD-31")
def test_the_image_is_a_message_a_source_and_then_its_end_and_then_changes(place: MamaDiscoverySetup) -> None:
    """With full support"""
    desk, twin = record(capabilities={"Region": "EU"}), record(number=8, state="NEW_WORD", data_dict=None)
    nameless = record(number=None)
    for made in (desk, twin, nameless):
        place.announce(made)
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    assert sorted(ear.wait(4)[:3], key=str) == sorted([desk, twin, nameless], key=str)
    assert ear.heard[3] == "end of the image"
    changed = record(data_dict="UNKNOWN")
    place.announce(changed)
    place.announce(changed)
    place.announce(record("other", 1))
    assert ear.wait(6)[4:] == [changed, record("other", 1)]


@pytest.mark.spec("SD-08", "SD-09", "SD-14")
def test_a_vanished_source_is_never_silence(place: MamaDiscoverySetup) -> None:
    """SUSPECT and OFFLINE come with the last known record"""
    ear, known = DiscoveryRecorder(), record(capabilities={"Region": "EU"})
    announcer = place.dying(known)
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    ear.wait(2)
    announcer.close()
    place.registry.advance(TTL)
    suspect = record(data_state="SUSPECT", capabilities={"Region": "EU"})
    offline = record(state=OFFLINE, data_state="SUSPECT", capabilities={"Region": "EU"})
    assert ear.wait(4)[2:] == [suspect, offline]
    place.announce(known)
    assert ear.wait(5)[4:] == [known], "and it is told when it is back"
    place.source.withdraw(SourceKey(*known.key), as_bytes(record(state=OFFLINE)))
    assert ear.wait(6)[5:] == [record(state=OFFLINE)]


@pytest.mark.spec("SD-04")
def test_in_the_image_a_suspect_source_is_one_message(place: MamaDiscoverySetup) -> None:
    place.dying(record()).close()
    place.registry.advance(TTL * 0.6)
    ear = DiscoveryRecorder()
    SourceDiscovery.create(ear.callbacks(), None, place.transport())
    assert ear.wait(2) == [record(data_state="SUSPECT"), "end of the image"]


@pytest.mark.spec("SD-19-SD-23")
def test_messages_wait_for_a_message_callback(place: MamaDiscoverySetup) -> None:
    """Created without callbacks, which are set later, with the closure"""
    place.announce(record())
    ear, discovery = DiscoveryRecorder(), SourceDiscovery.create(None, None, place.transport())
    until(lambda: len(discovery._pending) == 2)
    discovery.set_closure("mine")
    discovery.set_error_callback(ear.on_error)
    discovery.set_msg_callback(ear.on_msg)
    assert ear.wait(1) == [record()]
    assert ear.closures == ["mine"]
    discovery.destroy()
    discovery.destroy()
    for call in (discovery.set_msg_callback, discovery.set_error_callback, discovery.set_closure):
        with pytest.raises(StatusError, match="NULL_ARG"):
            call(None)
    place.announce(record("later", 1))
    assert ear.heard == [record()]


@pytest.mark.spec("SD-16")
def test_callbacks_come_on_the_queue_and_a_full_one_loses_nothing(place: MamaDiscoverySetup) -> None:
    """No more is read than the queue and the waiting room take"""
    queue, ear = Queue("sources", max_events=3), DiscoveryRecorder()
    for i in range(10):
        place.announce(record(f"s{i}", i))
    discovery = SourceDiscovery.create(ear.callbacks(), queue, place.transport())
    until(lambda: queue.get_event_count() == 3)
    assert ear.heard == []
    while len(ear.heard) < 11:
        queue.timed_dispatch(0.05)
    assert [r.name for r in ear.heard[:10]] == [f"s{i}" for i in range(10)]
    assert ear.threads == {threading.current_thread().name}
    with pytest.raises(StatusError, match="QUEUE_OPEN_OBJECTS"):
        queue.destroy()
    discovery.destroy()
    queue.destroy()


def test_a_callback_may_destroy_its_own_discovery(place: MamaDiscoverySetup) -> None:
    for i in range(5):
        place.announce(record(f"s{i}", i))
    ear = DiscoveryRecorder()

    def once(discovery: SourceDiscovery, msg: MamaMsg, closure: Any) -> None:
        ear.on_msg(discovery, msg, closure)
        discovery.destroy()

    discovery = SourceDiscovery.create(SourceDiscoveryCallbacks(on_msg=once), None, place.transport())
    ear.wait(1)
    until(lambda: discovery not in discovery._loop._readers)
    assert len(ear.heard) == 1


def test_several_discoveries_on_one_transport_each_see_everything(place: MamaDiscoverySetup) -> None:
    transport, ears = place.transport(), [DiscoveryRecorder(), DiscoveryRecorder()]
    for ear in ears:
        SourceDiscovery.create(ear.callbacks(), None, transport)
    place.announce(record())
    for ear in ears:
        assert record() in ear.wait(2)

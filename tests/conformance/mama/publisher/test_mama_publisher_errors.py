"""Publisher events: errors that come later, and answers that count for nothing."""

from __future__ import annotations

import pytest
from mama_spark.bridge import EventStyle
from mama_spark.bridges.memory import MemoryBridge
from mama_spark.mama import (
    Publisher,
    Queue,
    Transport,
    TransportTopicEvent,
)
from mama_spark.testing.waiting import until

from tests.support.mama.mama_harness import (
    CallbackRecorder,
    MamaHarness,
    MemoryMamaHarness,
    a_message,
    published,
)


@pytest.mark.spec("PE-01-PE-03", "PE-05", "PE-14", "PE-16", "PE-17", "PE-30")
def test_a_denied_topic_is_not_entitled_and_names_it(harness: MamaHarness, recorder: CallbackRecorder) -> None:
    """By exactly one of the two ways"""
    harness.deny()
    transport = harness.transport()
    transport.set_transport_topic_callback(recorder.on_topic, "closure")
    publisher = Publisher.create_with_callbacks(transport, None, harness.symbol, "denied", None, recorder.callbacks())
    publisher.send(a_message())
    topic = f"denied.{harness.symbol}"
    if harness.publisher_style:
        until(lambda: recorder.count("error"))
        assert recorder.heard[1][:3] == ("error", "LIVE", "NOT_ENTITLED")
        assert topic in str(recorder.heard[1][3]) or topic.lower() in str(recorder.heard[1][3])
        assert recorder.topics == []
    else:
        until(lambda: len(recorder.topics) == 2)
        created, denied = recorder.topics
        assert created == (TransportTopicEvent.PUBLISH_CREATE, topic, "")
        assert denied[:2] == (TransportTopicEvent.PUBLISH_ERROR_NOT_ENTITLED, topic)
        assert "no permission" in denied[2]
        assert transport.find_publishers(denied[1]) == [publisher], "PE-03: the publisher is found by its topic"
        publisher.destroy()
        assert recorder.topics[2:] == [(TransportTopicEvent.PUBLISH_DESTROY, topic, "")]
        assert transport.find_publishers(topic) == []
        assert recorder.count("error") == 0
    assert transport.callback_errors == 0


@pytest.mark.spec("PE-15", "PE-17")
@pytest.mark.parametrize("style", list(EventStyle))
@pytest.mark.parametrize(
    ("fault", "status", "event", "info"),
    [
        ("reject", "PLATFORM", "PUBLISH_ERROR", "400: refused by the script"),
        ("503", "PLATFORM", "PUBLISH_ERROR", "503: no responders"),
        ("disconnect", "TIMEOUT", "PUBLISH_ERROR", "the script cut the connection"),
        ("drop", "TIMEOUT", "PUBLISH_ERROR", "no answer within 0.2 s"),
    ],
)
def test_every_other_error_is_publish_error_with_the_middlewares_code_and_text(
    style: EventStyle, recorder: CallbackRecorder, fault: str, status: str, event: str, info: str
) -> None:
    on = MemoryMamaHarness(style)
    transport = on.transport(answer_timeout=0.2)
    transport.set_transport_topic_callback(recorder.on_topic)
    publisher = published(on, transport, recorder)
    on.broker.then([fault])
    publisher.send(a_message())
    if style is EventStyle.PUBLISHER:
        until(lambda: recorder.count("error"))
        assert recorder.heard[1][:4] == ("error", "LIVE", status, info)
    else:
        until(lambda: len(recorder.topics) == 2)
        assert (recorder.topics[1][0].name, recorder.topics[1][2]) == (event, info)
    on.close()


def test_a_late_answer_is_no_second_callback(memory: MemoryMamaHarness, recorder: CallbackRecorder) -> None:
    transport = memory.transport(answer_timeout=0.1)
    publisher = published(memory, transport, recorder)
    memory.broker.then(["late", "dup", "unknown"])
    for i in range(3):
        publisher.send(a_message(i))
    until(lambda: recorder.count("error"))
    memory.broker.release()
    publisher.send(a_message())
    until(lambda: recorder.count("success") == 3)
    assert recorder.counters[1] == 1


def test_answers_from_before_an_outage_do_not_count_for_what_is_sent_after_it(
    memory: MemoryMamaHarness, recorder: CallbackRecorder
) -> None:
    """A transport that is destroyed waits for what plain publishers sent: also when old answers came late"""
    transport = memory.transport()
    plain = Publisher.create(transport, memory.symbol, memory.source)
    memory.broker.then(["late", "disconnect"])
    plain.send(a_message())
    plain.send(a_message())
    until(lambda: transport.loop._outstanding_from == 2)
    assert memory.broker.release() == 1
    memory.broker.then(["late"])
    plain.send(a_message())
    assert transport.loop._outstanding_acks == 1
    memory.broker.release()
    until(lambda: transport.loop._outstanding_acks == 0)


def test_a_message_without_acknowledgements_is_neither_success_nor_error(recorder: CallbackRecorder) -> None:
    on = MemoryMamaHarness(EventStyle.PUBLISHER)
    queue = Queue(max_events=5000)
    transport = Transport.create("pub", MemoryBridge(on.symbol, acks=False), answer_timeout=0.05)
    publisher = published(on, transport, recorder, queue=queue)
    for i in range(10):
        publisher.send(a_message(i))
    until(lambda: transport.loop.tracked == 0)
    publisher.destroy()
    transport.destroy()
    assert recorder.counters == (1, 0, 0, 1)
    assert queue._reserved == 0
    on.close()

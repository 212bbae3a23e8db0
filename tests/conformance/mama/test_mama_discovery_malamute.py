"""OpenMAMA's source discovery and topic events over a Malamute broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.mama import MamaMsg, SourceDiscovery, SourceDiscoveryCallbacks, SourceRecord, Transport
from mama_spark.mama.messages.source_records import OFFLINE, OK, ONLINE, SUSPECT, decode_source
from mama_spark.mama.states import TransportTopicEvent
from mama_spark.testing.waiting import until

from tests.support.malamute.malamute_discovery import LASTING, SourceAnnouncers, discovering_broker
from tests.support.mama.mama_harness import CallbackRecorder


@pytest.mark.spec("SD-14", "SD-26", "SD-31", "PE-05", "PE-17")
def test_sources_come_and_vanish_and_readers_are_topic_events(tmp_path: Path) -> None:
    """Image, its end, changes, and what the broker itself says"""
    heard: list[Any] = []
    recorder = CallbackRecorder()

    def on_msg(discovery: SourceDiscovery, msg: MamaMsg, closure: Any) -> None:
        heard.append(decode_source(msg).record)

    first, second = SourceRecord("desk", 7, ONLINE, OK), SourceRecord("desk", 7, ONLINE, OK, data_dict="MARKETDATA")
    with discovering_broker(tmp_path) as broker, SourceAnnouncers(broker.url) as desks:
        desks.say(first, ttl=LASTING)
        transport = Transport.create("disc", f"{broker.url}/prices")
        transport.set_transport_topic_callback(recorder.on_topic)
        SourceDiscovery.create(
            SourceDiscoveryCallbacks(on_msg=on_msg, on_error=lambda d, error, c: heard.append(error),
                                     on_image_end=lambda d, c: heard.append("end of the image")),
            None, transport,
        )  # fmt: skip
        until(lambda: len(heard) == 2)
        with MalamuteClient(broker.url, "reader", features=None) as reader:
            reader.read("prices", "^eu")
        until(lambda: len(recorder.topics) == 2)
        desks.say(second, ttl=2.0)
        desks.fall_silent()
        until(lambda: len(heard) == 5)
        transport.destroy()
    suspect = SourceRecord("desk", 7, ONLINE, SUSPECT, data_dict="MARKETDATA")
    offline = SourceRecord("desk", 7, OFFLINE, SUSPECT, data_dict="MARKETDATA")
    assert heard == [first, "end of the image", second, suspect, offline]
    assert recorder.topics == [
        (TransportTopicEvent.SUBSCRIBED, "prices", "client reader reads ^eu"),
        (TransportTopicEvent.UNSUBSCRIBED, "prices", "client reader"),
    ]

"""Calls of subscriptions without a server: errors, frames, and the choice of endpoints."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import MamaError
from mama_spark.tango.client.subscription_calls import choose, errors_of, frames_of
from mama_spark.tango.errors import BadReply, CallLost, DevFailed, ServerAway, refusal
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.idl.negotiation import EndpointPair
from mama_spark.tango.topics import BadEndpoint, MulticastRefused, event_topic
from mama_spark.tango.types import DataReady, DevError, EventType, Severity

from tests.support.tables import each

ERRORS = (DevError("Broken", Severity.ERR, "it broke", "here"),)


@pytest.mark.spec("TG-18")
@each(
    ("error", "reason"),
    [
        (refusal("API_AttrNotFound", "no such attribute", "test"), "API_AttrNotFound"),
        (DevFailed(()), "API_CorbaException"),
        (CallLost("no reply"), "API_DeviceTimedOut"),
        (ServerAway("no connection"), "API_CantConnectToDevice"),
        (BadReply("unreadable"), "API_CorbaException"),
    ],
)
def test_a_failed_call_becomes_an_error_stack(error: MamaError, reason: str) -> None:
    assert errors_of(error)[0].reason == reason


def test_errors_and_values_that_were_read_become_the_frames_of_an_event() -> None:
    topic = event_topic("h:1", "a/b/c", "x", EventType.DATA_READY, False)
    for result in (ERRORS, DataReady("x", 5, 7)):
        event = decode(frames_of(str(topic), result))
        assert isinstance(event, Event)
        assert (event.errors or event.data) == result
        assert event.call.ctr == 0


@pytest.mark.spec("TG-32")
@each(
    ("endpoints", "error"),
    [
        ([("epgm://h:1", "tcp://h:2"), ("tcp://h:1", "pgm://h:2")], MulticastRefused),
        ([("tcp://h:1", "tcp://h")], BadEndpoint),
        ([("tcp://h:65536", "tcp://h:1"), ("tcp://h:1", "tcp://h:2")], BadEndpoint),
    ],
)
def test_endpoints_that_cannot_be_connected_to_are_refused(
    endpoints: list[tuple[str, str]], error: type[MamaError]
) -> None:
    with pytest.raises(error):
        choose([EndpointPair(*pair) for pair in endpoints])


@pytest.mark.spec("TG-33")
def test_a_single_pair_is_chosen_without_a_connection() -> None:
    single = EndpointPair("tcp://never.example:1", "tcp://never.example:2")
    assert choose([single]) == single
    assert choose([EndpointPair("epgm://h:1", "tcp://h:2"), single]) == single

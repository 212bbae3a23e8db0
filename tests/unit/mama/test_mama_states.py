"""Status codes, the states of a publisher, and the names of events."""

from __future__ import annotations

import pickle
from itertools import product
from typing import TypeAlias

import pytest
from mama_spark.contracts import errors
from mama_spark.contracts.errors import MamaError, PublishError
from mama_spark.mama.messages.omnm import BadMessage
from mama_spark.mama.messages.status import RESERVED, MsgStatus, MsgType, Status, StatusError, SubscriptionMsgType
from mama_spark.mama.states import (
    TABLE,
    IllegalPublisherStep,
    PublisherState,
    PublisherStep,
    TransportEvent,
    TransportTopicEvent,
    status_of,
    step,
    string_for_state,
    topic_event_for,
)

from tests.support.tables import each

S: TypeAlias = PublisherState
E: TypeAlias = PublisherStep


@pytest.mark.spec("PE-48-PE-54")
def test_the_seven_states_have_the_released_values() -> None:
    assert TABLE.keys() == set(S)
    assert [(s.name, s.value) for s in S] == [
        ("UNKNOWN", 0), ("CREATING", 1), ("LIVE", 2), ("DESTROYING", 3), ("DESTROYED_BRIDGE", 4),
        ("DESTROYING_WAIT_BRIDGE", 5), ("DESTROYED", 6),
    ]  # fmt: skip


@pytest.mark.spec("PE-33")
@each(("state", "event"), list(product(S, E)))
def test_only_the_steps_of_the_table_are_legal(state: S, event: E) -> None:
    if event in TABLE[state]:
        assert step(state, event) is TABLE[state][event]
    else:
        with pytest.raises(IllegalPublisherStep, match=f"{event.value} is not a step of {state.name}"):
            step(state, event)


def paths(state: S) -> list[str]:
    steps = [(event, rest) for event, after in TABLE[state].items() for rest in paths(after)]
    return [f"{state.name} -{event.value}-> {rest}" for event, rest in steps] or [state.name]


@pytest.mark.spec("PE-55", "PE-56")
def test_two_paths_lead_from_create_to_destroyed() -> None:
    """The bridge calls onDestroy during destroy, or later"""
    live = "CREATING -created-> LIVE -destroy-> DESTROYING"
    assert paths(S.CREATING) == [
        f"{live} -bridge_destroyed-> DESTROYED_BRIDGE -freed-> DESTROYED",
        f"{live} -bridge_returned-> DESTROYING_WAIT_BRIDGE -bridge_destroyed-> DESTROYED",
    ]


@pytest.mark.spec("PE-35")
def test_states_have_strings() -> None:
    assert [string_for_state(s) for s in S] == [s.name for s in S]
    assert string_for_state(2) == "LIVE"
    assert string_for_state(7) == string_for_state(-1) == "State not recognised"


@pytest.mark.spec("PE-17")
def test_topic_events_are_names() -> None:
    assert [str(e) for e in TransportTopicEvent] == [
        "SUBSCRIBED", "UNSUBSCRIBED", "PUBLISH_CREATE", "PUBLISH_DESTROY", "PUBLISH_ERROR",
        "PUBLISH_ERROR_NOT_ENTITLED", "PUBLISH_ERROR_BAD_SYMBOL",
    ]  # fmt: skip
    for event in (*TransportTopicEvent, *TransportEvent):
        assert event == event.name  # compared with what is stored, a name, and never with a number
    assert len(TransportEvent) == 12


@pytest.mark.spec("PE-17")
@each("status", Status)
def test_each_status_has_one_topic_event(status: Status) -> None:
    special = {Status.NOT_ENTITLED: "PUBLISH_ERROR_NOT_ENTITLED", Status.BAD_SYMBOL: "PUBLISH_ERROR_BAD_SYMBOL"}
    assert topic_event_for(status) == special.get(status, "PUBLISH_ERROR")
    assert topic_event_for(int(status)) == topic_event_for(status)


def publish_errors(cls: type[PublishError]) -> list[type[PublishError]]:
    return [cls, *(c for sub in cls.__subclasses__() if sub.__module__ == errors.__name__ for c in publish_errors(sub))]


@pytest.mark.spec("PE-15")
@each("cls", publish_errors(PublishError))
def test_every_error_of_a_bridge_has_a_mama_status(cls: type[PublishError]) -> None:
    special = {
        errors.PermissionDenied: Status.NOT_ENTITLED, errors.BadTopic: Status.BAD_SYMBOL,
        errors.BadRow: Status.INVALID_ARG, errors.TooLarge: Status.INVALID_ARG, errors.DoubledId: Status.INVALID_ARG,
        errors.OutcomeUnknown: Status.TIMEOUT, errors.AckTimeout: Status.TIMEOUT,
    }  # fmt: skip
    assert status_of(cls("no", 403)) is special.get(cls, Status.PLATFORM)
    assert status_of(cls("no", status="BAD_SYMBOL")) is Status.BAD_SYMBOL, "set by the bridge"


@pytest.mark.spec("PE-15")
def test_status_codes_have_strings() -> None:
    assert [Status(code).name for code in (0, 10, 29, 4001, 5008)] == [
        "OK", "NOT_ENTITLED", "DELETE", "NOT_PERMISSIONED", "BANDWIDTH_EXCEEDED"
    ]  # fmt: skip
    assert (len(Status), len(MsgType), len(MsgStatus), len(SubscriptionMsgType)) == (39, 36, 17, 13)


@pytest.mark.spec("PE-31")
def test_a_status_error_names_its_status_and_is_not_retryable() -> None:
    error = StatusError(Status.NOT_IMPLEMENTED, "set mama.nats.transport.x.sourcediscovery.supported")
    assert str(error) == "NOT_IMPLEMENTED: set mama.nats.transport.x.sourcediscovery.supported"
    assert str(StatusError(Status.NULL_ARG)) == "NULL_ARG"
    assert isinstance(error, MamaError)
    assert not error.retryable
    assert not error.may_have_landed


@pytest.mark.parametrize("error", [StatusError(Status.TIMEOUT, "late"), BadMessage("short", Status.WRONG_FIELD_TYPE)])
def test_errors_can_be_pickled(error: StatusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.status, again.info) == (type(error), error.status, error.info)


def test_reserved_fields_are_found_by_name_and_no_fid_is_given_twice() -> None:
    assert (RESERVED["MdSeqNum"].fid, RESERVED["MdSeqNum"].type.name) == (10, "U32")
    assert all(name == field.name for name, field in RESERVED.items())
    fids = [field.fid for field in RESERVED.values()]
    assert len(set(fids)) == len(fids) == 25

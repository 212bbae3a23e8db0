"""What both specifications name is there, under the snake_case of its own name; getters are properties."""

from __future__ import annotations

import re
from typing import Any

import mama_spark.mama
import pytest

from tests.support.tables import each

#: C names by the class they belong to; the part behind the ``_`` is the name.
NAMES: dict[str, str] = {
    "Publisher": """
        mamaPublisher_create mamaPublisher_createWithCallbacks mamaPublisher_destroy mamaPublisher_destroyEx
        mamaPublisher_send mamaPublisher_sendFromInbox mamaPublisher_sendReplyToInbox
        mamaPublisher_sendReplyToInboxHandle mamaPublisher_getUserCallbacks mamaPublisher_stringForState
    """,
    "BridgePublisher": """
        bridgeMamaPublisher_create bridgeMamaPublisher_createByIndex bridgeMamaPublisher_setUserCallbacks
        bridgeMamaPublisher_send bridgeMamaPublisher_sendFromInbox bridgeMamaPublisher_sendFromInboxByIndex
        bridgeMamaPublisher_sendReplyToInbox bridgeMamaPublisher_sendReplyToInboxHandle bridgeMamaPublisher_destroy
    """,
    "PublisherCallbacks": "mamaPublisherCallbacks_onCreate _onError _onDestroy _onSuccess",
    "Transport": """
        mamaTransport_create mamaTransport_destroy mamaTransport_setTransportTopicCallback
        mamaTransport_setTransportCallback mamaTransport_setTransportCallbackQueue
    """,
    "Queue": """
        mamaQueue_dispatch mamaQueue_dispatchEvent mamaQueue_stopDispatch mamaQueue_getEventCount mamaQueue_destroy
    """,
    "QueueDispatcher": "mamaDispatcher_destroy",
    "DQPublisher": """
        mamaDQPublisher_create mamaDQPublisher_createWithCallbacks mamaDQPublisher_send mamaDQPublisher_sendReply
        mamaDQPublisher_sendFromInbox mamaDQPublisher_setStatus mamaDQPublisher_setSenderId mamaDQPublisher_setSeqNum
        mamaDQPublisher_enableSendTime mamaDQPublisher_destroy
    """,
    "DQPublisherManager": """
        mamaDQPublisherManager_create mamaDQPublisherManager_addTopic mamaDQPublisherManager_removeTopic
        mamaDQPublisherManager_findTopic mamaDQPublisherManager_send mamaDQPublisherManager_destroy
    """,
    "DQPublisherManagerCallbacks": "_onCreate _onNewRequest _onRequest _onRefresh _onError _onMsg",
    "Inbox": "mamaInbox_create mamaInbox_destroy",
    "SourceDiscovery": """
        mamaSourceDiscovery_create mamaSourceDiscovery_destroy mamaSourceDiscovery_setMsgCallback
        mamaSourceDiscovery_setErrorCallback mamaSourceDiscovery_setClosure
    """,
    "SourceDiscoveryCallbacks": "_onMsg _onError",
}
GETTERS = {
    "Publisher": "getRoot getSource getSymbol getState getTransport",
    "DQPublisher": "getStatus getSeqNum getSenderId getState",
}
STATES = "UNKNOWN CREATING LIVE DESTROYING DESTROYED_BRIDGE DESTROYING_WAIT_BRIDGE DESTROYED"
TOPIC_EVENTS = (
    "SUBSCRIBED UNSUBSCRIBED PUBLISH_CREATE PUBLISH_DESTROY PUBLISH_ERROR PUBLISH_ERROR_NOT_ENTITLED "
    "PUBLISH_ERROR_BAD_SYMBOL"
)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition("_")[2]).lower()


@pytest.mark.spec("PE-06-PE-10", "PE-16", "PE-25", "PE-27-PE-29", "PE-35", "PE-37", "PE-44", "SD-16", "SD-19-SD-25")
@each("kind", NAMES)
def test_every_function_and_member_has_its_name(kind: str) -> None:
    made: Any = getattr(mama_spark.mama, kind)
    missing = [
        name for name in NAMES[kind].split() if not hasattr(made() if "Callbacks" in kind else made, snake(name))
    ]
    assert missing == []


@pytest.mark.spec("PE-22-PE-24", "PE-34")
@pytest.mark.parametrize("kind", GETTERS)
def test_every_getter_is_a_property(kind: str, memory_transport: mama_spark.mama.Transport) -> None:
    publisher = getattr(mama_spark.mama, kind).create(memory_transport, "symbol", "source", "root")
    missing = [name for name in GETTERS[kind].split() if not hasattr(publisher, snake(name.removeprefix("get")))]
    assert missing == []


@pytest.mark.spec("PE-17", "PE-48-PE-54")
def test_states_and_topic_events_have_their_names_in_their_order() -> None:
    assert [s.name for s in mama_spark.mama.PublisherState] == STATES.split()
    assert [e.name for e in mama_spark.mama.TransportTopicEvent] == TOPIC_EVENTS.split()
    assert mama_spark.mama.MAMA_SOURCE_DISCOVERY_TOPIC == "_MAMA_SOURCE_DISCOVERY"


@pytest.fixture
def memory_transport() -> Any:
    with mama_spark.mama.Transport.create("names", "memory://names") as transport:
        yield transport

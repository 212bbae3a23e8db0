"""OpenMAMA's publisher events and source discovery, over every bridge.

In this order (PE-18): :class:`Transport`, its topic callback, :class:`PublisherCallbacks`, :class:`Publisher`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridge_publisher import BridgePublisher
    from .discovery import SourceDiscovery, SourceDiscoveryCallbacks
    from .dq import DQPublisher
    from .dq_manager import DQPublisherManager, DQPublisherManagerCallbacks, PublishTopic
    from .inbox import Inbox, Request, RequestListener
    from .msg import Field, FieldType, MamaMsg
    from .publisher import Publisher, PublisherCallbacks
    from .queue import Queue, QueueDispatcher
    from .sources import MAMA_SOURCE_DISCOVERY_TOPIC, SourceFields, SourceRecord
    from .states import PublisherState, TransportEvent, TransportTopicEvent, string_for_state
    from .status import MsgStatus, MsgType, Status, StatusError, string_for_status
    from .transport import Transport
    from .values import MamaPrice, MamaTime

__all__ = [
    "MAMA_SOURCE_DISCOVERY_TOPIC",
    "BridgePublisher",
    "DQPublisher",
    "DQPublisherManager",
    "DQPublisherManagerCallbacks",
    "Field",
    "FieldType",
    "Inbox",
    "MamaMsg",
    "MamaPrice",
    "MamaTime",
    "MsgStatus",
    "MsgType",
    "PublishTopic",
    "Publisher",
    "PublisherCallbacks",
    "PublisherState",
    "Queue",
    "QueueDispatcher",
    "Request",
    "RequestListener",
    "SourceDiscovery",
    "SourceDiscoveryCallbacks",
    "SourceFields",
    "SourceRecord",
    "Status",
    "StatusError",
    "Transport",
    "TransportEvent",
    "TransportTopicEvent",
    "string_for_state",
    "string_for_status",
]

#: Name -> its module. Imported when asked for: the sink and the formats need a few small modules of this package, and
#: each process of Spark would pay for all of them.
_HOMES = {
    "BridgePublisher": ".bridge_publisher",
    "DQPublisher": ".dq",
    "DQPublisherManager": ".dq_manager",
    "DQPublisherManagerCallbacks": ".dq_manager",
    "Field": ".msg",
    "FieldType": ".msg",
    "Inbox": ".inbox",
    "MAMA_SOURCE_DISCOVERY_TOPIC": ".sources",
    "MamaMsg": ".msg",
    "MamaPrice": ".values",
    "MamaTime": ".values",
    "MsgStatus": ".status",
    "MsgType": ".status",
    "PublishTopic": ".dq_manager",
    "Publisher": ".publisher",
    "PublisherCallbacks": ".publisher",
    "PublisherState": ".states",
    "Queue": ".queue",
    "QueueDispatcher": ".queue",
    "Request": ".inbox",
    "RequestListener": ".inbox",
    "SourceDiscovery": ".discovery",
    "SourceDiscoveryCallbacks": ".discovery",
    "SourceFields": ".sources",
    "SourceRecord": ".sources",
    "Status": ".status",
    "StatusError": ".status",
    "Transport": ".transport",
    "TransportEvent": ".states",
    "TransportTopicEvent": ".states",
    "string_for_state": ".states",
    "string_for_status": ".status",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

"""OpenMAMA's publisher events and source discovery, over every bridge.

In this order (PE-18): :class:`Transport`, its topic callback, :class:`PublisherCallbacks`, :class:`Publisher`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .discovery.discovery import SourceDiscovery, SourceDiscoveryCallbacks
    from .inbox import Inbox, Request, RequestListener
    from .messages.msg import Field, FieldType, MamaMsg
    from .messages.source_records import MAMA_SOURCE_DISCOVERY_TOPIC, SourceFields, SourceRecord
    from .messages.status import MsgStatus, MsgType, Status, StatusError, string_for_status
    from .messages.values import MamaPrice, MamaTime
    from .publisher.bridge_publisher import BridgePublisher
    from .publisher.callbacks import PublisherCallbacks
    from .publisher.dq import DQPublisher
    from .publisher.dq_manager import DQPublisherManager, DQPublisherManagerCallbacks, PublishTopic
    from .publisher.publisher import Publisher
    from .queue import Queue, QueueDispatcher
    from .states import PublisherState, TransportEvent, TransportTopicEvent, string_for_state
    from .transport import Transport

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

#: Name -> its module. Imported on first use: the sink and the formats need a few small modules of this package, and
#: without this each Spark process would import all of them.
_HOMES = {
    "BridgePublisher": ".publisher.bridge_publisher",
    "DQPublisher": ".publisher.dq",
    "DQPublisherManager": ".publisher.dq_manager",
    "DQPublisherManagerCallbacks": ".publisher.dq_manager",
    "Field": ".messages.msg",
    "FieldType": ".messages.msg",
    "Inbox": ".inbox",
    "MAMA_SOURCE_DISCOVERY_TOPIC": ".messages.source_records",
    "MamaMsg": ".messages.msg",
    "MamaPrice": ".messages.values",
    "MamaTime": ".messages.values",
    "MsgStatus": ".messages.status",
    "MsgType": ".messages.status",
    "PublishTopic": ".publisher.dq_manager",
    "Publisher": ".publisher.publisher",
    "PublisherCallbacks": ".publisher.callbacks",
    "PublisherState": ".states",
    "Queue": ".queue",
    "QueueDispatcher": ".queue",
    "Request": ".inbox",
    "RequestListener": ".inbox",
    "SourceDiscovery": ".discovery.discovery",
    "SourceDiscoveryCallbacks": ".discovery.discovery",
    "SourceFields": ".messages.source_records",
    "SourceRecord": ".messages.source_records",
    "Status": ".messages.status",
    "StatusError": ".messages.status",
    "Transport": ".transport",
    "TransportEvent": ".states",
    "TransportTopicEvent": ".states",
    "string_for_state": ".states",
    "string_for_status": ".messages.status",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)

"""OpenMAMA's publisher events and source discovery, over every bridge.

In this order (PE-18): :class:`Transport`, its topic callback, :class:`PublisherCallbacks`, :class:`Publisher`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .discovery.discovery import SourceDiscovery, SourceDiscoveryCallbacks
    from .inbox import Inbox, Request, RequestListener
    from .messages.msg import Field, FieldType, MamaMsg
    from .messages.source_records import MAMA_SOURCE_DISCOVERY_TOPIC, SourceFields, SourceRecord
    from .messages.status import MsgStatus, MsgType, Status, StatusError
    from .messages.values import MamaPrice, MamaTime
    from .publisher.bridge_publisher import BridgePublisher, PublisherCallbacks
    from .publisher.dq import DQPublisher
    from .publisher.publisher import Publisher
    from .queue import Queue, QueueDispatcher
    from .states import PublisherState, TransportEvent, TransportTopicEvent, string_for_state
    from .transport import Transport

__all__ = [
    "MAMA_SOURCE_DISCOVERY_TOPIC", "BridgePublisher", "DQPublisher", "Field", "FieldType", "Inbox", "MamaMsg",
    "MamaPrice", "MamaTime", "MsgStatus", "MsgType", "Publisher", "PublisherCallbacks", "PublisherState", "Queue",
    "QueueDispatcher", "Request", "RequestListener", "SourceDiscovery", "SourceDiscoveryCallbacks", "SourceFields",
    "SourceRecord", "Status", "StatusError", "Transport", "TransportEvent", "TransportTopicEvent", "string_for_state",
]  # fmt: skip

#: Module -> what it has. Imported on first use: the sink and the formats need a few small modules of this package, and
#: without this each Spark process would import all of them.
_NAMES = {
    "discovery.discovery": "SourceDiscovery SourceDiscoveryCallbacks",
    "inbox": "Inbox Request RequestListener",
    "messages.msg": "Field FieldType MamaMsg",
    "messages.source_records": "MAMA_SOURCE_DISCOVERY_TOPIC SourceFields SourceRecord",
    "messages.status": "MsgStatus MsgType Status StatusError",
    "messages.values": "MamaPrice MamaTime",
    "publisher.bridge_publisher": "BridgePublisher PublisherCallbacks",
    "publisher.dq": "DQPublisher",
    "publisher.publisher": "Publisher",
    "queue": "Queue QueueDispatcher",
    "states": "PublisherState TransportEvent TransportTopicEvent string_for_state",
    "transport": "Transport",
}

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {name: module for module, names in _NAMES.items() for name in names.split()})

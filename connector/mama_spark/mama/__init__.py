"""OpenMAMA's publisher events and source discovery, over every bridge.

In this order (PE-18): :class:`Transport`, its topic callback, :class:`PublisherCallbacks`, :class:`Publisher`.
"""

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

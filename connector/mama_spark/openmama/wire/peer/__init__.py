"""A peer of an OpenMAMA network over ZeroMQ: its sockets, who else is there, who subscribes to what.

:class:`OpenMamaPeer` owns the sockets; what it decides by is pure: the naming client and the table of subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .frame_columns import FrameColumns
    from .frame_filter import ReceivedFrame
    from .naming_client import NamedPeer, PeerChange, PeerPresence
    from .peer import OpenMamaPeer, PeerInput
    from .settings import Endpoint, PeerSettings
    from .subscription_table import SubscriptionChange, SubscriptionTable

__all__ = [
    "Endpoint",
    "FrameColumns",
    "NamedPeer",
    "OpenMamaPeer",
    "PeerChange",
    "PeerInput",
    "PeerPresence",
    "PeerSettings",
    "ReceivedFrame",
    "SubscriptionChange",
    "SubscriptionTable",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "Endpoint": "settings",
            "FrameColumns": "frame_columns",
            "NamedPeer": "naming_client",
            "OpenMamaPeer": "peer",
            "PeerChange": "naming_client",
            "PeerInput": "peer",
            "PeerPresence": "naming_client",
            "PeerSettings": "settings",
            "ReceivedFrame": "frame_filter",
            "SubscriptionChange": "subscription_table",
            "SubscriptionTable": "subscription_table",
        },
    )

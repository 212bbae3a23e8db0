"""Makes the discovery bridge of options, with the errors that users of a format see."""

from __future__ import annotations

from ..contracts.bridge import DiscoveryBridge
from ..mama.messages.status import Status, StatusError
from ..options import TransportOptions
from ..registry import UnsupportedFeature, discovery_bridge


def make_discovery(o: TransportOptions) -> DiscoveryBridge:
    """The discovery bridge of this transport, not opened yet.

    :raises ConfigError: the bridge cannot be loaded
    :raises StatusError: NOT_IMPLEMENTED: it has no source discovery (SD-18)
    """
    try:
        return discovery_bridge(o)
    except UnsupportedFeature as e:
        raise StatusError(Status.NOT_IMPLEMENTED, str(e)) from e

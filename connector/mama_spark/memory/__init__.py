"""The in-memory middleware, for tests and for users without a broker. A URL is ``memory://name``."""

from mama_spark.options import SinkOptions, TransportOptions

from .bridge import MemoryBridge
from .broker import MemoryBroker, MemoryMessage
from .discovery import MemoryDiscovery
from .logs import MemoryLogs

__all__ = ["MemoryBridge", "MemoryBroker", "MemoryMessage", "discovery_bridge", "log_bridge", "publisher_bridge"]


def publisher_bridge(o: SinkOptions) -> MemoryBridge:
    return MemoryBridge(_name(o), acks=o.ack_mode != "none")


def discovery_bridge(o: TransportOptions) -> MemoryDiscovery:
    return MemoryDiscovery(_name(o))


def log_bridge(o: TransportOptions, timeout: float) -> MemoryLogs:
    return MemoryLogs(_name(o))


def _name(o: TransportOptions) -> str:
    return o.url[0].partition("://")[2]

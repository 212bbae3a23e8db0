"""NATS JetStream: ``NatsBridge(NatsSettings(...))``; ``mama serve`` and ``mama check`` stand on this room too.

``frames``, ``headers``, ``subjects``, ``wire``, ``acks``, ``fast``, ``errors`` decide without I/O; ``loop``, ``link``,
``tap``, ``pool``, ``streams``, ``batching``, ``mailbox`` act; ``bridge`` puts them behind the contract.
"""

from .bridge import NatsBridge
from .settings import NatsSettings

__all__ = ["NatsBridge", "NatsSettings"]

"""NATS JetStream: ``NatsBridge(NatsSettings(...))``; ``mama serve`` and ``mama check`` stand on this room too.

``frames``, ``headers``, ``subjects``, ``wire``, ``acks``, ``fast``, ``errors`` decide without I/O; ``loop``, ``link``,
``tap``, ``pool``, ``streams``, ``batching``, ``mailbox`` act; ``bridge`` puts them behind the contract.

Reading: ``records`` and ``retention`` decide; ``api`` asks, ``feed`` is what one consumer delivers, ``reading`` goes
from consumer to consumer, ``stream_log`` and ``logs`` put that behind the contract of logs.
"""

from .bridge import NatsBridge
from .settings import NatsSettings

__all__ = ["NatsBridge", "NatsSettings"]

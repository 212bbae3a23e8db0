"""Stream engines: each stores and routes one stream of the broker; :mod:`.base` is their interface. Pure."""

from mama_spark.malamute.protocol.patterns import BadPattern

from .base import Delivery, StreamEngine, holds
from .registry import engine_class, names, register

__all__ = ["BadPattern", "Delivery", "StreamEngine", "engine_class", "holds", "names", "register"]

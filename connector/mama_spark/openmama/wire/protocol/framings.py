"""The framings by name. A framing more is a module more, and its name here. Pure."""

from __future__ import annotations

from mama_spark.mama.messages.omnm import BadMessage

from .frames import BridgeFrame, FrameType, Framing
from .framing_oz import OzFraming
from .framing_zmq import ZmqFraming

OZ, ZMQ = OzFraming(), ZmqFraming()
FRAMINGS: dict[str, Framing] = {framing.name: framing for framing in (OZ, ZMQ)}

__all__ = ["FRAMINGS", "OZ", "ZMQ", "BadMessage", "BridgeFrame", "FrameType", "Framing"]

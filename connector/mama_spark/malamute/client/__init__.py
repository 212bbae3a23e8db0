"""The client of a Malamute broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .client import MalamuteClient, Tracker
    from .messages import Message

__all__ = ["MalamuteClient", "Message", "Tracker"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"MalamuteClient": "client", "Message": "messages", "Tracker": "client"})

"""Starts ``nats-server`` on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .nats_server import NatsServer, find_binary

__all__ = ["NatsServer", "find_binary"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"NatsServer": "nats_server", "find_binary": "nats_server"})

"""OpenMAMA over ZeroMQ: a name server, and a market data publisher that serves what is in a record log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.moved_names import lazy

if TYPE_CHECKING:
    from .name_server import NameServer

__all__ = ["NameServer"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"NameServer": "name_server"})

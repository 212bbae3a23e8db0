"""OpenMAMA over ZeroMQ: a name server, and a market data publisher that serves what is in a record log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from .log_follower import LogFollower
    from .market_data_source import MarketDataSource, SourceRules
    from .name_server import NameServer
    from .server import MarketDataServer
    from .source_state import SourceState

__all__ = ["LogFollower", "MarketDataServer", "MarketDataSource", "NameServer", "SourceRules", "SourceState"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "LogFollower": "log_follower",
            "MarketDataServer": "server",
            "MarketDataSource": "market_data_source",
            "NameServer": "name_server",
            "SourceRules": "market_data_source",
            "SourceState": "source_state",
        },
    )

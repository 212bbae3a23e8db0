"""The broker's sockets, threads and configuration."""

__all__ = [
    "broker",
    "client_router",
    "engine_pool",
    "engine_selector",
    "inspection",
    "loop",
    "metrics",
    "security",
    "settings",
    "stream_catalog",
    "traffic_counters",
]

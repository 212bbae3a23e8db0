"""The formats ``mamapub``, ``mamasub`` and ``mamadiscovery`` of Spark; the only package that imports pyspark."""

__all__ = [
    "announced",
    "bridge_factory",
    "discovery",
    "formats",
    "option_loading",
    "read_flight_log",
    "register",
    "sink",
    "subscribe",
]

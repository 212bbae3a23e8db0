"""The formats ``mamapub``, ``mamasub`` and ``mamadiscovery`` of Spark; the only package that imports pyspark."""

__all__ = [
    "announced",
    "bridge_factory",
    "discovery",
    "formats",
    "lag",
    "option_loading",
    "read_flight_log",
    "register",
    "sink",
    "subscribe",
]

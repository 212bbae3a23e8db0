"""Long-running programs: brokers, servers and recorders."""

__all__ = ["malamute_broker", "tango_recorder", "tango_server"]

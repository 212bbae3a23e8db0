"""Replay of a record log through an event source: what ``mama tango-source`` does."""

__all__ = ["awaited_clients", "log_replayer", "replay_service"]

"""Tango events (RFC 12) in pure Python: wire formats, a client with subscriptions, and the format of recorded logs."""

__all__ = ["archive_strategies", "client", "errors", "events", "giop", "idl", "log", "topics", "types"]

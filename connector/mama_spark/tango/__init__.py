"""Tango events (RFC 12) in pure Python: wire formats, a client with subscriptions, and the format of recorded logs."""

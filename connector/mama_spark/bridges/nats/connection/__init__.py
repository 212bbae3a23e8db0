"""Connections to NATS servers: nats-py's client, its event loop, and bulk reads of its socket."""

__all__ = [
    "ack_parser",
    "client_errors",
    "connect_options",
    "connection",
    "event_loop",
    "nats_py_compat",
    "pool",
    "raw_read",
]

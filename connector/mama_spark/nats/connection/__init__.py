"""Connections to NATS servers: nats-py's client, its event loop, bulk reads and gathered writes of its socket."""

__all__ = [
    "ack_parser",
    "client_errors",
    "connect_options",
    "connection",
    "event_loop",
    "gathered_write",
    "nats_py_compat",
    "pool",
    "raw_read",
]

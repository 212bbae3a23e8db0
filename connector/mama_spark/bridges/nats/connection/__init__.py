"""Connections to NATS servers: nats-py's client, its event loop, and bulk reads of its socket."""

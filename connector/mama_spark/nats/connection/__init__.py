"""Connections to NATS servers: nats-py's client, its event loop, bulk reads and gathered writes of its socket."""

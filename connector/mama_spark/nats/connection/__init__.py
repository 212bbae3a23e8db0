"""Connections to NATS servers: one that its thread drives, for publishers, and one of nats-py, for readers."""

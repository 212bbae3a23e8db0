"""Requests to JetStream: one client and its retry rule; streams, consumers and direct gets built on it."""

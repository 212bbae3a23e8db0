"""Requests to JetStream: one client, its retry rule, and what is made of it for streams, consumers and direct gets."""

__all__ = ["api", "consumers", "retry", "stream_client", "streams"]

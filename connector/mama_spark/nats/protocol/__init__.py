"""The bytes of the NATS protocol as columns and frames, in both directions. Pure."""

__all__ = ["acks", "direct_get", "fast_batch", "frames", "headers", "parser", "records"]

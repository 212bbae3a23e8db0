"""Publishing to JetStream streams, and requests over core NATS."""

__all__ = ["ack_queue", "bridge", "fast_ingest", "requests", "stream_router"]

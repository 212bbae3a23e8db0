"""Publishing to JetStream streams, and requests over core NATS."""

"""Publishing to JetStream streams and over core NATS."""

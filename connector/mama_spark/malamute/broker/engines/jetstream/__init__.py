"""The engine that stores a stream in NATS JetStream."""

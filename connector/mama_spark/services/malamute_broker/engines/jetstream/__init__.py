"""The engine that stores a stream in NATS JetStream."""

__all__ = ["async_publisher", "engine", "names", "ordered_consumer", "settings", "stream_reader"]

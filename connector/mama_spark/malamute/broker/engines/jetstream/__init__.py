"""The engine that stores a stream in NATS JetStream."""

__all__ = ["async_publisher", "engine", "message_codec", "ordered_consumer", "settings", "stream_reader"]

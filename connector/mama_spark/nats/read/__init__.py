"""Reading JetStream streams as record logs."""

__all__ = ["append", "logs", "progress", "pull_subscription", "range_reader", "retention", "stream_log"]

"""Streams of the broker: write, read, ping, query; commands to engines and their answers. Pure."""

__all__ = [
    "engine_answer_handler",
    "engine_command_queue",
    "log_query_server",
    "ping_handler",
    "publish_handler",
    "publish_windows",
    "stream_opener",
    "stream_table",
    "subscription_handler",
]

"""The Malamute protocol (MLP): commands, extensions and their rules. Pure."""

__all__ = ["commands", "credit", "extensions", "log_query", "message_blocks", "patterns", "transition_table", "ttl"]

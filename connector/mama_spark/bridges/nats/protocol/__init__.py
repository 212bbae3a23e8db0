"""NATS protocol text as columns, in both directions. Pure."""

"""The managed publisher: one call per message, with futures and callbacks."""

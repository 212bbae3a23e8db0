"""The managed publisher: one call a message, with futures and callbacks."""

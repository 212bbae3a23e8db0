"""The Malamute broker (``mama broker``): sockets, sessions of clients, and stream engines."""

__all__ = ["broker", "configuration", "engines", "serve", "session"]

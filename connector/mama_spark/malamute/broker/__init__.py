"""The Malamute broker (``mama broker``): sockets, sessions of clients, and stream engines."""

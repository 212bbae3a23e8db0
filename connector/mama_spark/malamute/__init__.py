"""The Malamute protocol (MLP) and its client; the broker is in ``services``."""

__all__ = ["client", "protocol", "zmq_fd_poller"]

"""The window of flights, retries, and the one loop that sends through a bridge; below bridges and publishers.

Publishers, record logs and discovery all send with it.
"""

__all__ = [
    "backpressure",
    "blocking_sender",
    "flight",
    "flight_batch",
    "outage",
    "resend_limits",
    "resend_queue",
    "retry",
    "send_index",
    "send_loop",
    "window",
]

"""Publishers: batches with a bounded window, and publishing that survives outages; ``managed`` has the public one."""

__all__ = ["api", "batch_publisher", "clock", "ids", "managed", "rate_limiter", "resilient_publisher"]

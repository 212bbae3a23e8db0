"""Publishers: batches with a bounded window, and publishing that survives outages; ``managed`` has the public one."""

"""What decides about flights and does no I/O: window, states, retries, ids."""

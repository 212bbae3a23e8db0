"""Flights and the window that limits them, retries, and the loop that sends through a bridge: below bridges and
publishers, so that both send in one way."""

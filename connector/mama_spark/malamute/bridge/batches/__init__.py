"""Which rows of a batch are stored already: markers in a durable stream, and message ids read back by log queries."""

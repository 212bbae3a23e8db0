"""Which rows of a batch are stored already: markers in a stream of their own, and message ids read back."""

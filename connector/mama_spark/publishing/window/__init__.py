"""The window of flights, retries, and the one loop that sends through a bridge; below bridges and publishers.
Publishers, record logs and discovery all send with it."""

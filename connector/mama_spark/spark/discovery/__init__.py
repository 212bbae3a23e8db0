"""The format ``mamadiscovery``: sources and events as rows."""

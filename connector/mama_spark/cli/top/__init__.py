"""``mama top``: sources, publishers, readers and streams as they are now. The screen needs the extra ``top``."""

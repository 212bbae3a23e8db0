"""Stores each row of a batch once, whatever happens and however long it takes: :mod:`.protocol` explains how.

``protocol``, ``found_rows`` and ``claims`` are pure; ``batch_session`` talks to the middleware.
"""

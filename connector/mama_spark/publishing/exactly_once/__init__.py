"""Stores each row of a batch once, over any number of attempts: :mod:`.protocol` explains how.

``protocol`` (markers, leases), ``matching`` (claims) and ``found_rows`` (tables of stored rows) are pure; ``session``
talks to the middleware.
"""

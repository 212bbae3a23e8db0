"""Stores each row of a batch once, whatever happens and however long it takes: :mod:`.protocol` explains how.

Pure are ``protocol`` (markers and leases), ``claims``, and ``matching`` over ``found_rows`` (tables of what is stored);
``session`` talks to the middleware.
"""

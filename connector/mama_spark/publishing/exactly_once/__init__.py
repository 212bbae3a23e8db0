"""Stores each row of a batch once, whatever happens and however long it takes: :mod:`.protocol` explains how.

Pure are ``protocol`` (markers and leases), and ``matching`` (claims) over ``found_rows`` (tables of what is stored);
``session`` talks to the middleware.
"""

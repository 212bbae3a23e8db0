"""The project beside the original programs of the middlewares that it speaks with: ``make test-originals``.

Nothing else needs these programs. They are built elsewhere, from their own sources; their place is ``ORIGINALS``.
"""

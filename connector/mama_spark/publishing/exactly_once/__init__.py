"""Stores each row of a batch once, over any number of attempts: :mod:`.protocol` explains how."""

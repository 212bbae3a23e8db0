"""Losses that no later event shows: what servers say that they have sent, against what was received."""

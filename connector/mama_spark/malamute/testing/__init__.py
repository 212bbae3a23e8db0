"""Test kit for authors of a stream engine: :mod:`.engine_suite`; needs ``mama-spark[malamute,testing]``."""

"""Replay of a record log through an event source: what ``mama tango-source`` does."""

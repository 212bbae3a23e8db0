"""Tango servers and clients for tests, each a process of its own."""

"""Tango devices, servers and subscribers for tests."""

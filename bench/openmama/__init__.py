"""Benchmarks of messages of OpenMAMA."""

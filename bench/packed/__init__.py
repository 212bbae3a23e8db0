"""Benchmarks of packed messages."""

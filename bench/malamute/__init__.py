"""Benchmarks of the Malamute broker."""

"""Benchmarks of events of Tango."""

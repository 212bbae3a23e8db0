"""Harnesses of the three formats and of jobs for tests."""

"""Tango's events as rows of Spark."""

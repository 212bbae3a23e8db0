"""Tango events as records of a log. Pure."""

"""Tango events as records of a log: their format, and the state of the recorder that writes them. Pure."""

"""Tango publish and subscribe (RFC 12) in Python alone: subscriber, event source, calls of the control plane."""

"""Tango events in ZeroMQ frames (RFC 12). Pure."""

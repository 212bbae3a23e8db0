"""Tango event source: a device server in Python whose attributes send events to clients."""

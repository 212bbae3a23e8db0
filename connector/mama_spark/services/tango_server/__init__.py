"""A Tango event source: a device server whose attributes send events."""

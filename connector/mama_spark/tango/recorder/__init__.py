"""Tango recorder: subscribes to devices and writes their events into a record log."""

__all__ = ["device_subscriptions", "other_recorders", "recorder", "settings"]

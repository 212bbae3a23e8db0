"""Tango recorder: subscribes to devices and writes their events into a record log."""

__all__ = ["device_subscriptions", "loss_check_thread", "metrics", "other_recorders", "recorder", "settings"]

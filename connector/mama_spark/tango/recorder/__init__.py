"""Tango recorder: subscribes to devices and writes their events into a record log."""

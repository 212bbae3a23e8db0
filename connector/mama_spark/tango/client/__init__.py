"""Tango client: subscribes to events, and calls devices."""

"""Subscriptions to Tango events, and calls of devices."""

"""Requests to the JetStream API."""

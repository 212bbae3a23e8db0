"""Starts ``nats-server`` on this machine."""

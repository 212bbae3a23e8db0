"""Mailboxes and services: messages to one receiver each. Pure."""

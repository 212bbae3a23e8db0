"""Mailboxes and services: messages that one receiver takes. Pure."""

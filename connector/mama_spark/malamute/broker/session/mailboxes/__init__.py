"""Mailboxes and services: messages that one receiver takes. Pure."""

__all__ = ["mailbox_receipts", "mailbox_server", "mailbox_store"]

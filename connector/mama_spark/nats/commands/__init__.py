"""Subcommands of ``mama`` for NATS."""

"""Subcommands of ``mama`` for Malamute."""

"""Subcommands of ``mama`` for Tango."""

"""Subcommands of ``mama`` for OpenMAMA."""

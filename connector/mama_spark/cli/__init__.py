"""The command ``mama``: its subcommands and its live view."""

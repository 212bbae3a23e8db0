"""Shared parts of commands: arguments, signals, exit codes, and output: tables, progress, help, completion, discovery.
Plain text where no terminal is, or where Rich is not installed (extra ``cli``)."""

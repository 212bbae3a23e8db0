"""What commands share: arguments, signals, exit codes, and what they show in a terminal: tables, progress, help,
completion, discovery. Plain text where no terminal is, or where Rich is not installed (extra ``cli``)."""

"""The exit codes of all commands."""

from __future__ import annotations

FINE, NOT_ALL, WRONG, INTERRUPTED = 0, 1, 2, 130

#: In short, for the help.
SUMMARY = (
    f"exit codes: {FINE} fine; {NOT_ALL} not all was done; {WRONG} an error, with a line that describes it; "
    f"{INTERRUPTED} Ctrl-C"
)
#: In full, for the page.
MEANINGS = {
    FINE: "fine; or SIGTERM cleanly ended a command that runs until it is stopped",
    NOT_ALL: "not all was done: messages of `mama pub` or `mama record` are not acknowledged, also after Ctrl-C",
    WRONG: "an error, with a line on standard error; `mama check` has a line `BAD`; a server cannot start, or ended by "
    "itself",
    INTERRUPTED: "Ctrl-C; a command that runs until Ctrl-C ended cleanly",
}

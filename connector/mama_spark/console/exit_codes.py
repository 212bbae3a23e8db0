"""The exit codes of all commands."""

from __future__ import annotations

FINE, NOT_ALL, WRONG, INTERRUPTED = 0, 1, 2, 130

#: In short, for the help.
SUMMARY = (
    f"exit codes: {FINE} fine; {NOT_ALL} not all was done; {WRONG} something is wrong, with a line that says what; "
    f"{INTERRUPTED} Ctrl-C"
)
#: In full, for the page.
MEANINGS = {
    FINE: "fine; a command that runs until it is stopped: SIGTERM ended it in order",
    NOT_ALL: "not all was done: messages of `mama pub` or `mama record` are not acknowledged, also after Ctrl-C; "
    "`mama audit` has findings",
    WRONG: "something is wrong: a line on standard error says what, or `mama check` has a line `BAD`; `mama audit` "
    "cannot tell; also a server that cannot start, or that ended by itself",
    INTERRUPTED: "Ctrl-C; a command that runs until then ended in order",
}

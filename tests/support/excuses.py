"""Counts the rules of suites that were excused, at the end of a run; a plugin, named in ``tests/conftest.py``.

A test says so with ``record_property("excused", reason)``.
"""

from __future__ import annotations

from collections import Counter

import pytest


def excuses(reports: list[pytest.TestReport]) -> Counter[str]:
    """Reasons, and how many tests gave them."""
    return Counter(str(reason) for r in reports for name, reason in r.user_properties if name == "excused")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = excuses([r for r in terminalreporter.getreports("passed") if r.when == "call"])
    if found:
        terminalreporter.section(f"{found.total()} rules are excused")
        for reason, count in sorted(found.items()):
            terminalreporter.line(f"{count:3} {reason}")

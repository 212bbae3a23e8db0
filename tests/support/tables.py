"""Tables of many rows that are one test: a case of pytest costs more than most rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like ``pytest.mark.parametrize``, with one test for all rows: its error names the row that failed.

    For tests without fixtures, which the rows would share.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    named = [
        (row.id, row.values)
        if isinstance(row, type(pytest.param()))
        else (None, (row,) if len(parameters) == 1 else tuple(row))
        for row in rows
    ]
    assert named, "a table without rows proves nothing"

    def loop(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def of_all_rows(**others: Any) -> None:
            for name, row in named:
                given = dict(zip(parameters, row, strict=True))
                try:
                    test(**given, **others)
                except BaseException as error:
                    error.add_note(f"row: {name or given}")
                    raise

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in parameters]
        of_all_rows.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return of_all_rows

    return loop

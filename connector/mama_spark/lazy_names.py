"""Imports the names of a package when they are first used, so that an import of the package costs little."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """``__getattr__`` of a package.

    :param homes: name -> module of the package that has it
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find

"""Declares options: an option is a field of a dataclass, with type, default, range and documentation.

The option's name is the field's name in camel case. Names are case-insensitive: Spark lower-cases the keys of options.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ..errors import OptionError
from .urls import redact_url
from .values import Parse

#: Options whose values are URLs, which may hold a password.
_URLS = ("url", "log")
#: Keys that Spark itself hands to a data source.
SPARK_KEYS = frozenset({"path", "checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class Declared:
    """What the declaration says of one option beyond its Python type."""

    parse: Parse
    kind: str  #: how the documentation names the type
    doc: str
    group: str
    shown: str  #: how the documentation shows the default
    alias: str | None = None
    secret: bool = False


def option(
    kind: str,
    parse: Parse,
    default: Any,
    group: str,
    doc: str,
    *,
    shown: str | None = None,
    alias: str | None = None,
    secret: bool = False,
) -> Any:
    """One option. ``default`` is the parsed value, ``shown`` how the docs print it (if not the value itself)."""
    text = shown if shown is not None else "" if default is None else str(default).lower()
    return field(default=default, metadata={"option": Declared(parse, kind, doc, group, text, alias, secret)})


@dataclass(frozen=True, repr=False)
class Options:
    """Base of the option sets; make one with :meth:`parse`."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check and convert options as Spark hands them over.

        :raises OptionError: names the option, what was expected, and for unknown names the nearest one
        """
        names = _by_name(cls)
        values: dict[str, Any] = {}
        storage: list[tuple[str, str]] = []
        keeps_tables = "storage" in {f.name for f in fields(cls)}
        for key, value in given.items():
            low = key.lower()
            if keeps_tables and low.startswith("storage."):
                storage.append((low.removeprefix("storage."), value))
                continue
            if low in SPARK_KEYS:
                continue
            if low not in names:
                raise OptionError(f"unknown option {key!r}{nearest(low, option_names(cls))}")
            attribute, declared = names[low]
            if attribute in values:
                raise OptionError(f"option {camel(attribute)} is given twice, as {key!r} and by its other name")
            try:
                values[attribute] = declared.parse(value)
            except ValueError as e:
                got = "" if declared.secret or attribute in _URLS else f", got {value!r}"
                raise OptionError(f"option {camel(attribute)} {e}{got}") from None
        if storage:
            values["storage"] = tuple(sorted(storage))
        options = cls(**values)
        options._cross_check(values.keys())
        return options

    def _cross_check(self, given: Collection[str]) -> None:
        """What no single option can know. ``given``: the fields that the user set.

        :raises OptionError: two options do not go together
        """

    def __repr__(self) -> str:
        """Only what differs from the defaults; secrets as ``***``."""
        shown = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            if f.name == "storage":
                shown += [f"storage.{key}=***" for key, _ in value]
            elif f.name in _URLS:
                shown.append(f"{f.name}={','.join(map(redact_url, value))}")
            else:
                secret = f.metadata["option"].secret
                shown.append(f"{camel(f.name)}={'***' if secret else value}")
        return f"{type(self).__name__}({', '.join(shown)})"


def declarations(cls: type) -> Iterator[tuple[str, Declared]]:
    """The options of a dataclass, by field."""
    for f in fields(cls):
        if "option" in f.metadata:
            yield f.name, f.metadata["option"]


def require(condition: bool, text: str) -> None:
    """:raises OptionError: the condition does not hold"""
    if not condition:
        raise OptionError(text)


def camel(attribute: str) -> str:
    """Option name of a field: ``max_in_flight`` -> ``maxInFlight``."""
    head, *rest = attribute.split("_")
    return head + "".join(word.capitalize() for word in rest)


def nearest(name: str, known: Iterable[str], label: str = "did you mean") -> str:
    """``"; did you mean X?"`` for the known name nearest to ``name``, or nothing."""
    by_low = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_low, 1, 0.6)
    return f"; {label} {by_low[near[0]]!r}?" if near else ""


def option_names(cls: type) -> list[str]:
    """All option names that ``cls`` knows, aliases included."""
    declared = dict(declarations(cls))
    return [*map(camel, declared), *(one.alias for one in declared.values() if one.alias)]


def _by_name(cls: type) -> dict[str, tuple[str, Declared]]:
    names = {}
    for name, declared in declarations(cls):
        names[camel(name).lower()] = (name, declared)
        if declared.alias:
            names[declared.alias.lower()] = (name, declared)
    return names

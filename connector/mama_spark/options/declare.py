"""Declares options: an option is a field of a dataclass, with type, default, range and documentation. Pure.

The option's name is the field's name in camel case. Names are case-insensitive: Spark lower-cases the keys of options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self

from ..contracts.errors import OptionError
from ..contracts.middlewares import MIDDLEWARES
from ..contracts.redaction import redact_url
from .scopes import ANY_USE, EVERYWHERE, PATHS, Scope, Use, kafka_successor
from .values import Parse, nearest

#: Options whose values are URLs, which may hold a password.
_URLS = ("url", "log")
#: Prefix of options that are passed to delta-rs unchanged.
STORAGE = "storage."
_names: dict[type, dict[str, tuple[str, Declared]]] = {}
_STREAM_WRITER_KEYS = frozenset({"checkpointlocation", "queryname", "outputmode"})
#: Group of the options that every use of a format takes.
CONNECTION = "Connection"
FORMATS: dict[str, type[Options]] = {}


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of one option."""

    parse: Parse
    kind: str  #: how the documentation names the type
    doc: str
    group: str
    shown: str  #: how the documentation shows the default
    alias: str | None = None
    secret: bool = False
    scope: Scope = EVERYWHERE

    def is_of(self, cls: type) -> bool:
        """Whether the option has an effect in the format whose option set ``cls`` is."""
        formats, mine = self.scope.formats, getattr(cls, "FORMAT", "")
        return formats is None or not mine or mine in formats


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
    scope: Scope = EVERYWHERE,
) -> Any:
    """One option. ``default`` is the parsed value, ``shown`` how the docs print it (if not the value itself)."""
    text = shown if shown is not None else "" if default is None else str(default).lower()
    return field(default=default, metadata={"option": Declared(parse, kind, doc, group, text, alias, secret, scope)})


@dataclass(frozen=True, repr=False)
class Options:
    """Base of the option sets; make one with :meth:`parse`."""

    FORMAT: ClassVar[str] = ""

    def __init_subclass__(cls, *, format_name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if format_name:
            cls.FORMAT = format_name
            FORMATS[format_name] = cls

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use = ANY_USE, shared: Collection[str] = ()) -> Self:
        """Check and convert options as Spark hands them over.

        :param use: the use of the options; an option that has no effect there is an error
        :param shared: names, in lower case, that a file of several uses has: left out where they have no effect
        :raises OptionError: names the option, what was expected, and for unknown names the nearest one
        """
        names = _by_name(cls)
        values: dict[str, Any] = {}
        storage: list[tuple[str, str]] = []
        stated = set()  # fields that the user set here, not in that file
        for key, value in given.items():
            low = key.lower()
            if low in use.spark_keys:
                continue
            if why := why_not_here(cls, low, key, use):
                if low in shared:
                    continue
                raise OptionError(why)
            if low not in names:
                storage.append((low.removeprefix(STORAGE), value))
                stated |= set() if low in shared else {"storage"}
                continue
            attribute, declared = names[low]
            if attribute in values:
                raise OptionError(f"option {camel(attribute)} is given twice, as {key!r} and by its other name")
            stated |= set() if low in shared else {attribute}
            try:
                values[attribute] = declared.parse(value)
            except ValueError as e:
                shown = not declared.secret and attribute not in _URLS and "@" not in value
                got = f", got {value!r}" if shown else ""
                raise OptionError(f"option {camel(attribute)} {e}{got}") from None
        if storage:
            values["storage"] = tuple(sorted(storage))
        options = cls(**values)
        options._cross_check(values.keys())
        options._check_bridges(stated)
        if use.is_job:
            options._check_needs(stated)
        return options

    @property
    def bridges(self) -> frozenset[str]:
        """Names of the bridges that these options are for; empty = any."""
        return frozenset()

    def _check_bridges(self, stated: Collection[str]) -> None:
        """Refuse options that are only for other bridges.

        :raises OptionError: ``stated`` names one
        """
        mine = self.bridges
        if not mine or "memory" in mine:
            return
        also = {option for name in mine if name in MIDDLEWARES for option in MIDDLEWARES[name].options}
        for name, declared in declarations(type(self)):
            theirs = declared.scope.bridges
            if name in stated and theirs is not None and mine.isdisjoint(theirs) and camel(name) not in also:
                raise OptionError(
                    f"option {camel(name)} is for {_titles(theirs)}, and the url is of {_titles(sorted(mine))}: "
                    "leave it out"
                )

    def _check_needs(self, stated: Collection[str]) -> None:
        """Refuse options that have no effect without another one, in a whole read or write. ``stated``: given here, not
        in a file of several uses.

        :raises OptionError: that option is missing
        """

    def _cross_check(self, given: Collection[str]) -> None:
        """Check options against each other. ``given``: the fields that the user set.

        :raises OptionError: two options do not go together
        """

    def shown(self) -> dict[str, str]:
        """The values that differ from the defaults, by option name; secrets as ``***``."""
        shown: dict[str, str] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            if f.name == "storage":
                shown |= {f"storage.{key}": "***" for key, _ in value}
            elif f.name in _URLS:
                shown[f.name] = ",".join(map(redact_url, value))
            else:
                shown[camel(f.name)] = "***" if f.metadata["option"].secret else _as_text(value)
        return shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self.shown().items())})"


def _as_text(value: Any) -> str:
    """A value as users write it; durations in seconds."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return str(value)


def declarations(cls: type) -> Iterator[tuple[str, Declared]]:
    for f in fields(cls):
        if "option" in f.metadata:
            yield f.name, f.metadata["option"]


def keeps_tables(cls: type) -> bool:
    """Whether options of the family ``storage.*`` belong to ``cls``."""
    return "storage" in {f.name for f in fields(cls)}


def require(condition: bool, text: str) -> None:
    if not condition:
        raise OptionError(text)


@cache
def camel(attribute: str) -> str:
    """Option name of a field: ``max_in_flight`` -> ``maxInFlight``."""
    head, *rest = attribute.split("_")
    return head + "".join(word.capitalize() for word in rest)


def option_names(cls: type) -> list[str]:
    """All option names that ``cls`` takes, aliases included."""
    declared = {name: one for name, one in declarations(cls) if one.is_of(cls)}
    return [*map(camel, declared), *(one.alias for one in declared.values() if one.alias)]


def why_not_here(cls: type[Options], low: str, key: str, use: Use) -> str | None:
    """Why the option ``key`` (``low``: in lower case) cannot be given here; None: it can. Only this decides it."""
    if low.startswith(STORAGE) and keeps_tables(cls) and use.takes is None:
        return None
    found = _by_name(cls).get(low)
    if found is None:
        return _unknown(cls, low, key, use)
    name, declared = found
    taken = use.takes is None or declared.group == CONNECTION or name in use.takes
    if not taken:
        return f"option {camel(name)} has no effect in {use.what}: leave it out"
    streaming = declared.scope.streaming
    if streaming is not None and use.streaming is not None and use.streaming is not streaming:
        kind = "streams" if streaming else "batches"
        return f"option {camel(name)} has no effect in {use.what}, it is for {kind}: leave it out"
    return None


def _unknown(cls: type[Options], low: str, key: str, use: Use) -> str:
    if low in PATHS:
        return (
            f"option path, which .save(), .load() and .start() take too, has no effect in {use.what} of {cls.FORMAT}: "
            "leave it out (url names the server; topics or a column topic say what is read or written)"
        )
    known = option_names(cls)
    if (instead := kafka_successor(low)) is not None:
        elsewhere = instead not in known and any(instead in option_names(other) for other in FORMATS.values())
        here = f"you mean {instead}" if instead and not elsewhere else "nothing here takes its place, leave it out"
        return f"option {key!r} is of Spark's Kafka connector: {here}"
    others = [
        name
        for name, other in FORMATS.items()
        if low in _by_name(other) or (low.startswith(STORAGE) and keeps_tables(other))
    ]
    if others:
        near = next((k for k in known if k.lower().startswith(low) or low.startswith(k.lower())), None)
        here = f"; did you mean {near!r}?" if near else ": leave it out"
        return f"option {key} is of {' and '.join(others)}, not of {cls.FORMAT}{here}"
    if low in _STREAM_WRITER_KEYS:
        return f"option {key} is of writeStream and has no effect in {use.what}: leave it out"
    return f"unknown option {key!r}{nearest(low, known)}"


def _by_name(cls: type) -> Mapping[str, tuple[str, Declared]]:
    if cls not in _names:
        _names[cls] = names = {}
        for name, declared in declarations(cls):
            if not declared.is_of(cls):
                continue
            names[camel(name).lower()] = (name, declared)
            if declared.alias:
                names[declared.alias.lower()] = (name, declared)
    return _names[cls]


def _titles(bridges: Iterable[str]) -> str:
    return " and ".join(MIDDLEWARES[bridge].title for bridge in bridges)


def refuse_alone(given: Collection[str], prefix: str, needed: str) -> None:
    """Refuse options whose names begin with ``prefix``: they have no effect without ``needed``."""
    alone = sorted(name for name in given if name.startswith(prefix))
    require(not alone, f"option {camel(alone[0]) if alone else ''} needs {needed}")

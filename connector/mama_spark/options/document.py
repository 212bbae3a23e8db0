"""Writes ``docs/reference/options.md`` from the declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .declare import CONNECTION, Options, camel, declarations
from .reading import DiscoveryOptions, SubscribeOptions
from .sink import SinkOptions
from .times import TIMES

_FORMATS: tuple[type[Options], ...] = (SinkOptions, SubscribeOptions, DiscoveryOptions)


class FileSection(NamedTuple):
    """Tables of one configuration file.

    :ivar heading: the command and the file
    :ivar tables: heading of each, and the dataclass that declares its keys
    :ivar spelling: key in the file for the name of a field
    """

    heading: str
    tables: tuple[tuple[str, type], ...]
    spelling: Callable[[str], str] = str


def markdown(files: Sequence[FileSection] = ()) -> str:
    """The whole page.

    :param files: configuration files of programs, described after the formats
    """
    lines = [
        "# Options",
        "",
        "Generated from the declarations in the source by `make docs`; `make check` fails when stale.",
        "",
        "Names of options are case-insensitive; keys of files are not. An unknown name is an error, and so is an "
        "option that has no effect: of another format, of streams or batches, of another middleware (column "
        "`only for`), or the `path` of `.save()`, `.load()` and `.start()`. An option of a transport in a "
        "`mama.properties` file is left out where it has no effect.",
        "",
        "A duration has a unit: `500ms`, `30s`, `5m`, `2h`, `7d`. A number alone is milliseconds in an option; files "
        "and arguments of programs need the unit.",
        "",
        f"{TIMES}. A number that counts seconds, micro- or nanoseconds is refused.",
        "",
        "A size is a number of bytes, or has a unit: `64 KiB`, `1 MiB`, `2 GiB`. A boolean is `true`/`false`, "
        "`on`/`off`, `yes`/`no` or `1`/`0`; in files, `true` or `false`.",
        "",
        "## Connection, of every format",
        "",
        *_option_table(SinkOptions, CONNECTION),
    ]
    for options in _FORMATS:
        lines += ["", f"## `{options.FORMAT}`"]
        taken = [declared for _, declared in declarations(options) if declared.is_of(options)]
        for group in dict.fromkeys(declared.group for declared in taken):
            if group != CONNECTION:
                lines += ["", f"### {group}", "", *_option_table(options, group)]
        if options is SinkOptions:
            lines += [
                "",
                "`storage.*` is passed to delta-rs, for the tables: `storage.aws_endpoint_url`, ... Never logged.",
            ]
    for file in files:
        lines += ["", f"## {file.heading}"]
        for heading, table in file.tables:
            lines += ["", f"### {heading}", "", *_table(table, file.spelling)]
    return "\n".join(lines) + "\n"


def described(files: Sequence[FileSection] = ()) -> Iterator[dict[str, str]]:
    """What :func:`markdown` has in its tables, one option of a format or key of a file at a time."""
    for options in _FORMATS:
        for name, one in declarations(options):
            if one.is_of(options):
                yield {
                    "format": options.FORMAT, "group": one.group, "option": camel(name), "type": one.kind,
                    "default": one.shown, "only_for": one.scope.text(), "meaning": one.doc,
                }  # fmt: skip
    for file in files:
        for heading, table in file.tables:
            for name, key in declarations(table):
                yield {
                    "file": file.heading, "table": heading, "key": file.spelling(name), "type": key.kind,
                    "default": key.shown, "meaning": key.doc,
                }  # fmt: skip


def _option_table(options: type[Options], group: str) -> list[str]:
    """The options of one group of a format, with where they have an effect."""
    rows = ["| option | type | default | only for | meaning |", "|---|---|---|---|---|"]
    for name, one in declarations(options):
        if one.group == group and one.is_of(options):
            alias = f" (or `{one.alias}`)" if one.alias else ""
            rows.append(f"| `{camel(name)}`{alias} | {one.kind} | {one.shown} | {one.scope.text()} | {one.doc} |")
    return rows


def _table(declared: type, spelling: Callable[[str], str]) -> list[str]:
    """All keys of a table of a file."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{spelling(name)}` | {one.kind} | {one.shown} | {one.doc} |" for name, one in declarations(declared)]
    return rows

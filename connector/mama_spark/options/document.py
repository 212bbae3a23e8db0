"""Writes ``docs/reference/options.md`` from the declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .declare import Options, camel, declarations
from .reading import DiscoveryOptions, SubscribeOptions
from .sink import SinkOptions

_FORMATS: tuple[tuple[str, type[Options]], ...] = (
    ("mamapub", SinkOptions),
    ("mamasub", SubscribeOptions),
    ("mamadiscovery", DiscoveryOptions),
)
_SHARED = ("Connection",)


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
        "Names of options are case-insensitive; keys of files are not. An unknown name is an error that names the "
        "nearest one.",
        "",
        "A duration has a unit: `500ms`, `30s`, `5m`, `2h`, `7d`. A number alone is milliseconds. In the file of the "
        "broker it is seconds in the tables `[[stream]]` and milliseconds in the others, and seconds for the arguments "
        "of `mama tango-source`; there it is reported with the unit that it was read in.",
        "",
        "A size is a number of octets, or has a unit: `64 KiB`, `1 MiB`, `2 GiB`. A boolean is `true`/`false`, "
        "`on`/`off`, `yes`/`no` or `1`/`0`; in files, `true` or `false`.",
        "",
        "## Connection, of every format",
        "",
        *_table(SinkOptions, "Connection"),
    ]
    for name, options in _FORMATS:
        lines += ["", f"## `{name}`"]
        for group in dict.fromkeys(declared.group for _, declared in declarations(options)):
            if group not in _SHARED:
                lines += ["", f"### {group}", "", *_table(options, group)]
        if options is SinkOptions:
            lines += [
                "",
                "`storage.*` is passed to delta-rs, for the tables: `storage.aws_endpoint_url`, ... Never logged.",
            ]
    for file in files:
        lines += ["", f"## {file.heading}"]
        for heading, table in file.tables:
            lines += ["", f"### {heading}", "", *_table(table, None, file.spelling, "key")]
    return "\n".join(lines) + "\n"


def _table(
    declared: type, group: str | None, spelling: Callable[[str], str] = camel, what: str = "option"
) -> list[str]:
    """
    :param group: only options of this one; None: all
    """
    rows = [f"| {what} | type | default | meaning |", "|---|---|---|---|"]
    for name, one in declarations(declared):
        if group in (None, one.group):
            alias = f" (or `{one.alias}`)" if one.alias else ""
            rows.append(f"| `{spelling(name)}`{alias} | {one.kind} | {one.shown} | {one.doc} |")
    return rows

"""Writes ``docs/reference/options.md`` from the declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .declare import CONNECTION, Declared, Options, camel, declarations
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


def markdown() -> str:
    lines = [
        "# Options",
        "",
        "For authors of jobs: every option. A meaning begins with the only cases in which the option has an effect. "
        "[Configuration files](configuration.md) have keys of their own.",
        "",
        "Names are case-insensitive. An unknown option is an error, as is one without effect (unless it comes from a "
        "transport in `mama.properties`).",
        "",
        "- A duration has a unit: `500ms`, `30s`, `5m`, `2h`, `7d`; a bare number is milliseconds, in options only.",
        f"- {TIMES}.",
        "- A size is a number of bytes, or has a unit: `64 KiB`, `1 MiB`, `2 GiB`.",
        "- A boolean is `true`/`false`, `on`/`off`, `yes`/`no` or `1`/`0`; in files, `true` or `false`.",
        "",
        "## Connection, of every format",
        "",
        *_HEAD,
        *(row for row, declared in _rows(SinkOptions) if declared.group == CONNECTION),
    ]
    before: dict[str, str] = {}
    for options in _FORMATS:
        lines += ["", f"## `{options.FORMAT}`"]
        taken = {row: declared for row, declared in _rows(options) if declared.group != CONNECTION}
        for format_name in dict.fromkeys(before.values()):
            same = [row.split()[1] for row in taken if before.get(row) == format_name]
            lines += ["", f"As [`{format_name}`](#{format_name}): {', '.join(same)}."] if same else []
        for group in dict.fromkeys(declared.group for row, declared in taken.items() if row not in before):
            lines += ["", f"### {group}", "", *_HEAD]
            lines += [row for row, declared in taken.items() if declared.group == group and row not in before]
        before = dict.fromkeys(taken, options.FORMAT) | before
        if options is SinkOptions:
            lines += [
                "",
                "`storage.*` is passed to delta-rs, for the tables: `storage.aws_endpoint_url`, … Never logged.",
            ]
    return "\n".join(lines) + "\n"


def described(files: Sequence[FileSection] = ()) -> Iterator[dict[str, str]]:
    """The options of all formats, one after the other, and the keys of files."""
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


_HEAD = ("| option | type (default) | meaning |", "|---|---|---|")


def _rows(options: type[Options]) -> Iterator[tuple[str, Declared]]:
    """Each option as a line of a table, with where it has an effect."""
    for name, one in declarations(options):
        if one.is_of(options):
            alias = f" (or `{one.alias}`)" if one.alias else ""
            only = one.scope.text()
            meaning = f"*{only[0].upper()}{only[1:]}.* {one.doc}" if only else one.doc
            default = f" ({one.shown})" if one.shown else ""
            yield f"| `{camel(name)}`{alias} | {one.kind}{default} | {meaning} |", one

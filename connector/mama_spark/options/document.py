"""``docs/options.md``, from the declarations."""

from __future__ import annotations

from dataclasses import fields

from .declare import Options, camel
from .reading import DiscoveryOptions, SubscribeOptions
from .sink import SinkOptions

_FORMATS: tuple[tuple[str, type[Options]], ...] = (
    ("mamapub", SinkOptions),
    ("mamasub", SubscribeOptions),
    ("mamadiscovery", DiscoveryOptions),
)
_SHARED = ("Connection",)


def markdown() -> str:
    """The whole page."""
    lines = [
        "# Options",
        "",
        "Generated from the declarations in `mama_spark/options` by `make docs`; `make check` fails when stale.",
        "",
        "Names are case-insensitive. A duration is a number of milliseconds or has a unit: `250`, `5s`, `2m`.",
        "A boolean is `true`/`false`, `on`/`off`, `yes`/`no` or `1`/`0`.",
        "An unknown name is an error that names the nearest one.",
        "",
        "## Connection, of every format",
        "",
        *_table(SinkOptions, "Connection"),
    ]
    for name, options in _FORMATS:
        lines += ["", f"## `{name}`"]
        for group in dict.fromkeys(f.metadata["option"].group for f in fields(options) if "option" in f.metadata):
            if group not in _SHARED:
                lines += ["", f"### {group}", "", *_table(options, group)]
        if options is SinkOptions:
            lines += [
                "",
                "`storage.*` is passed to delta-rs, for the tables: `storage.aws_endpoint_url`, ... Never logged.",
            ]
    return "\n".join(lines) + "\n"


def _table(options: type[Options], group: str) -> list[str]:
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for f in fields(options):
        declared = f.metadata.get("option")
        if declared is not None and declared.group == group:
            alias = f" (or `{declared.alias}`)" if declared.alias else ""
            rows.append(f"| `{camel(f.name)}`{alias} | {declared.kind} | {declared.shown} | {declared.doc} |")
    return rows

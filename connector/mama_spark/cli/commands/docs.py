"""``mama docs options``: the options of all formats and the keys of all configuration files, as Markdown."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ...console.help import examples
from ...contracts.errors import ConfigError
from ...malamute.broker.broker.security import Security
from ...malamute.broker.broker.settings import BrokerSettings
from ...malamute.broker.configuration import EventsTable
from ...malamute.broker.engines.registry import settings_classes
from ...malamute.broker.session.mailbox_store import Limits
from ...malamute.broker.session.settings import SessionSettings
from ...openmama.recorder.settings import OpenMamaRecorderSettings
from ...options import camel, markdown
from ...options.document import FileSection, described
from ...tango.recorder.settings import TangoRecorderSettings
from ...tango.source.replay.log_replayer import Rule

FILES = (
    FileSection(
        "Broker: `mama broker --conf-file conf/broker.toml`",
        (
            ("`[broker]`", BrokerSettings),
            ("`[clients]`", SessionSettings),
            ("`[mailboxes]`, and the same keys in `[services]`", Limits),
            ("`[events]`", EventsTable),
            ("`[security]`; `[security.users]` has a password by user name", Security),
            *((f'`[[stream]]` with `engine = "{name}"`', cls) for name, cls in settings_classes().items()),
        ),
    ),
    FileSection(
        "Recorder: `mama record --conf-file conf/tango-record.toml`",
        (("`[recorder]`, with `url` of the database", TangoRecorderSettings),),
        camel,
    ),
    FileSection(
        "Recorder of OpenMAMA: `mama record --conf-file conf/openmama-record.toml`",
        (("`[recorder]`, with `url` of the name server", OpenMamaRecorderSettings),),
        camel,
    ),
    FileSection("Event source: `mama tango-source --conf-file conf/tango-source.toml`", (("`[[attribute]]`", Rule),)),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = parser.add_subparsers(required=True, metavar="WHAT").add_parser(
        "options",
        help="the options of all formats and the keys of all configuration files, as Markdown",
        description="The options of all formats and the keys of all configuration files, as Markdown.",
        epilog=examples(("mama docs options", "mama docs options --json", "mama docs options --write options.md")),
    )
    way = options.add_mutually_exclusive_group()
    way.add_argument("--write", type=Path, metavar="FILE", help="write them to FILE")
    way.add_argument("--check", type=Path, metavar="FILE", help="fail when FILE is not fresh")
    way.add_argument("--json", action="store_true", help="one line of JSON for each option or key")


def run(args: argparse.Namespace) -> int:
    if args.json:
        for fields in described(FILES):
            print(json.dumps(fields, ensure_ascii=False))
        return 0
    text = markdown(FILES)
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    elif args.check:
        if not args.check.exists() or args.check.read_text(encoding="utf-8") != text:
            raise ConfigError(f"{args.check} is not what the declaration of the options says: run make docs")
    else:
        print(text, end="")
    return 0

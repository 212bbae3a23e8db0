"""Options of a format from the words of a command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ..errors import OptionError
from ..mama.properties import expand
from ..options import Options, option_names


def options(args: argparse.Namespace, known: type[Options], **more: str) -> dict[str, str]:
    """What was given, as Spark would hand it over, completed by the transport that it names.

    :raises OptionError: no NAME=VALUE, or a name twice
    """
    given = pairs(args.option, "--option")
    if args.url is not None:
        given.append(("url", args.url))
    given += more.items()
    found = {name.lower(): value for name, value in given}
    if len(found) < len(given):
        raise OptionError("an option is given twice")
    return expand(found, option_names(known), os.environ).options


def pairs(words: Sequence[str], flag: str) -> list[tuple[str, str]]:
    """:raises OptionError: a word without ``=`` or without a name"""
    split = [word.partition("=") for word in words]
    if bad := [word for word, (name, equals, _) in zip(words, split, strict=True) if not (name.strip() and equals)]:
        raise OptionError(f"{flag} wants NAME=VALUE, got {bad[0]!r}")
    return [(name.strip(), value) for name, _, value in split]

"""Arguments that several subcommands share, and options of a format from NAME=VALUE arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from ..errors import OptionError
from ..mama.properties import expand
from ..options import Options, option_names
from ..options.tables import warn_about_bare_number
from ..options.values import Duration


def add_transport(parser: argparse.ArgumentParser, formats: str) -> None:
    """``--url`` and ``--option``.

    :param formats: whose options these are
    """
    parser.add_argument("--url", metavar="URL", help="servers; the scheme picks the bridge (nats://127.0.0.1:4222)")
    add_option(parser, f"any option of {formats} in docs/reference/options.md, such as credentials=...")


def add_option(parser: argparse.ArgumentParser, text: str) -> None:
    """``--option``, which may be repeated."""
    parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def duration_argument(name: str, parse: Duration) -> Callable[[str], float]:
    """The ``type`` of a duration in seconds, for ``add_argument``."""

    def seconds(text: str) -> float:
        try:
            found = parse(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(f"{e}, got {text!r}") from None
        warn_about_bare_number(name, text, parse)
        return found

    return seconds


def options(args: argparse.Namespace, known: type[Options], **more: str) -> dict[str, str]:
    """What was given, as Spark would hand it over, completed by the transport that it names.

    :raises OptionError: no NAME=VALUE, or a name twice
    """
    given = transport(args) + list(more.items())
    found = {name.lower(): value for name, value in given}
    if len(found) < len(given):
        raise OptionError("an option is given twice")
    return expand(found, option_names(known), os.environ).options


def transport(args: argparse.Namespace) -> list[tuple[str, str]]:
    """What ``--option`` and ``--url`` say."""
    url = [] if args.url is None else [("url", args.url)]
    return url + pairs(args.option, "--option")


def pairs(arguments: Sequence[str], flag: str) -> list[tuple[str, str]]:
    """Names and values of NAME=VALUE arguments.

    :raises OptionError: one has no ``=`` or no name; its text may be a secret, and is not shown
    """
    split = [argument.partition("=") for argument in arguments]
    if not all(name.strip() and equals for name, equals, _ in split):
        raise OptionError(f"{flag} must be NAME=VALUE, and one has no name or no =")
    return [(name.strip(), value) for name, _, value in split]

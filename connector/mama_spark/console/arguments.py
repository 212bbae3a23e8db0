"""Arguments that several subcommands share, and options of a format from NAME=VALUE arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..contracts.errors import OptionError
from ..options import Options, Use, option_names
from ..options.nats_environment import with_nats_environment
from ..options.times import Duration, duration
from ..options.urls import DEFAULT_SERVER

if TYPE_CHECKING:
    from ..mama.properties import Expanded

O = TypeVar("O", bound=Options)  # noqa: E741 - as everywhere, options are o


def add_transport(parser: argparse.ArgumentParser, formats: str, more: str = "", *, positional: bool = True) -> None:
    """``URL`` and ``--url`` (:func:`add_url`), and ``--option`` of these ``formats``; ``more``: about them."""
    add_url(parser, f"servers; the scheme picks the bridge ({DEFAULT_SERVER})", positional=positional)
    add_option(parser, f"any option of {formats} in docs/reference/options.md, such as credentials=...{more}")


def add_url(parser: argparse.ArgumentParser, text: str, *, positional: bool = True) -> None:
    """``URL`` and ``--url``: the one way to name the server that a command is about, or reads from; one that it writes
    to is ``--to``. ``positional=False``: other arguments of the command have no name, and the server has one."""
    if positional:
        parser.add_argument("positional_url", nargs="?", metavar="URL", help="as --url")
    parser.add_argument("--url", metavar="URL", help=text)


def add_option(parser: argparse.ArgumentParser, text: str) -> None:
    """``--option``, which may be repeated."""
    parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def add_storage(parser: argparse.ArgumentParser, of: str = "delta-rs") -> None:
    """``--storage``, which may be repeated."""
    parser.add_argument("--storage", action="append", default=[], metavar="NAME=VALUE", help=f"storage option of {of}")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus text at /metrics there (extra prometheus)"
    )


def duration_argument(parse: Duration = duration) -> Callable[[str], float]:
    """The ``type`` of a duration in seconds, for ``add_argument``."""

    def seconds(text: str) -> float:
        try:
            return parse.with_unit(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(f"{e}, got {text!r}") from None

    return seconds


def options(args: argparse.Namespace, cls: type[O], use: Use, **more: str) -> O:
    """The given options, completed by the transport that they name, and checked.

    :param more: options from arguments of the command
    :raises OptionError: no NAME=VALUE, a name twice, or an option that is wrong or has no effect in this command
    """
    given = transport(args) + list(more.items())
    found = {name.lower(): value for name, value in given}
    if len(found) < len(given):
        raise OptionError("an option is given twice")
    full = completed(found, cls)
    return cls.parse(full.options, use, full.shared)


def completed(given: Mapping[str, str], cls: type[Options], *more: str) -> Expanded:
    """Options, completed by the environment and by the transport that they name.

    :param more: names beside the options of ``cls``
    :raises ConfigError: a NATS context or a file of properties cannot be read, or lacks what is named
    """
    from ..mama.properties import expand  # with OpenMAMA's messages and wire, a third of the start of other commands

    return expand(with_nats_environment(given, os.environ), [*option_names(cls), *more], os.environ)


def transport(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Options from ``URL``, ``--url`` and ``--option``.

    :raises OptionError: see :func:`named_url` and :func:`pairs`
    """
    url = named_url(args)
    return [*([] if url is None else [("url", url)]), *pairs(args.option, "--option")]


def named_url(args: argparse.Namespace) -> str | None:
    """The URL of ``URL`` or ``--url``; None: neither is given. OptionError: both are."""
    named: list[str] = [url for url in (getattr(args, "positional_url", None), args.url) if url is not None]
    if len(named) > 1:
        raise OptionError("the server is named twice: by URL and by --url")
    return named[0] if named else None


def pairs(arguments: Sequence[str], flag: str) -> list[tuple[str, str]]:
    """Names and values of NAME=VALUE arguments.

    :raises OptionError: one has no ``=`` or no name; its text may be a secret, and is not shown
    """
    split = [argument.partition("=") for argument in arguments]
    if not all(name.strip() and equals for name, equals, _ in split):
        raise OptionError(f"{flag} must be NAME=VALUE, and one has no name or no =")
    return [(name.strip(), value) for name, _, value in split]

"""Arguments of commands that serve a log: the log, the position to begin at, and the file that keeps the position."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit

from ..contracts.errors import OptionError
from ..contracts.redaction import redact_url
from ..options import SubscribeOptions, Use
from ..options.urls import log_urls, split_stream
from .arguments import named_url, options

LOG = "the log: nats://host:4222/STREAM, mlp://host/stream"


def add_begin(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--begin", type=_begin, default="saved", metavar="WHERE", help=text)


def _begin(text: str) -> str:
    if text not in ("saved", "latest", "earliest") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be saved, latest, earliest or a sequence, got {text!r}")
    return text


def served_urls(args: argparse.Namespace) -> tuple[str, ...]:
    """URLs of the log that the command names.

    :raises OptionError: it names none
    """
    url = named_url(args)
    if url is None:
        raise OptionError("name the log as URL, or by --url: nats://host:4222/STREAM, mlp://host:9999/stream")
    try:
        return log_urls(url)
    except ValueError as e:
        raise OptionError(f"the URL of the log {e}") from None


def served_log(args: argparse.Namespace, urls: tuple[str, ...], use: Use) -> SubscribeOptions:
    """Options of the log's connection; ``args.url`` becomes its servers, ``args.log`` all of it.

    :raises OptionError: see :func:`~.arguments.options`
    """
    servers, stream = split_stream(urls)
    args.url, args.positional_url, args.log = ",".join(servers), None, ",".join(urls)
    return options(args, SubscribeOptions, use, stream=stream or urlsplit(servers[0]).netloc)


def default_state_file(command: str, urls: tuple[str, ...], served_as: str, suffix: str) -> Path:
    """One file for each log and name that it is served as, below ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    places = [urlsplit(redact_url(url, mask="")) for url in urls]
    names = [f"{place.scheme}://{place.netloc}{place.path}" for place in places]
    key = hashlib.sha256("\n".join((*names, served_as)).encode()).hexdigest()[:16]
    return Path(base) / "mama-spark" / f"{command}-{served_as.replace('/', '-')}-{key}{suffix}"

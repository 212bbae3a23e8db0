"""Parses URLs of servers, and comma lists of them. Pure."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from ..contracts.errors import ConfigError
from ..contracts.middlewares import SCHEMES, Middleware, find, load_others, of_url
from ..contracts.redaction import redact_url

DEFAULT_SERVER = "nats://127.0.0.1:4222"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_ENCODED = "in a user, password or token, / ? # @ : and , are percent-encoded"


def urls(value: str) -> tuple[str, ...]:
    """A comma list of servers of one middleware. A server without a scheme has that of the server before it, the first
    one ``nats://``: ``mlp://one:9999,two:9999`` is a pair of brokers."""
    urls = tuple(part.strip() for part in value.split(",") if part.strip())
    if not urls:
        raise ValueError("must name at least one server, like nats://host:4222")
    if any("@" in url and "@" not in before and not _SCHEME.match(url) for before, url in pairwise(urls)):
        raise ValueError(f"has a comma before an @, in {redact_url(value)}: give each server its scheme ({_ENCODED})")
    urls = tuple(accumulate(urls, lambda before, url: with_scheme(url, before.split("://", 1)[0]), initial="nats"))[1:]
    schemes = {url.split("://", 1)[0] for url in urls}
    if schemes - SCHEMES.keys():
        load_others()
    unknown = schemes - SCHEMES.keys()
    if unknown:  # what stands before :// may be a part of a password that was cut at a comma
        first = urls[0].split("://", 1)[0]
        shown = first if first in unknown else "" if "@" in value else sorted(unknown)[0]
        named = f"the unknown scheme {shown}://" if shown else "an unknown scheme"
        instead = "; websockets are not used: name the port for clients, as nats:// or tls://"
        known = f"known are {', '.join(sorted(SCHEMES))}{instead if shown in ('ws', 'wss') else ''}"
        raise ValueError(f"has {named}; {known}")
    if len({SCHEMES[scheme].name for scheme in schemes}) > 1:
        raise ValueError("mixes servers of different middlewares")
    for url in urls:
        _check(url)
    return urls


def nats_urls(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    found = urls(value)
    if middleware_of(found).name != "nats":
        raise ValueError("must name NATS servers: nats://host:4222, tls://host:4222")
    return found


def middleware_of(found: tuple[str, ...], name: str | None = None) -> Middleware:
    """The middleware of servers, as :func:`urls` gave them, or the one of a name.

    :raises ConfigError: this machine lacks its package
    """
    middleware = of_url(found[0]) if name is None else find(name)
    if middleware is None:
        raise ConfigError(
            f"no package on this machine has a middleware {name or found[0].partition(':')[0]!r}: install it here, too"
        )
    return middleware


def with_scheme(url: str, default: str = "nats") -> str:
    """The URL of a server with its scheme in lower case; the default where it has none."""
    match = _SCHEME.match(url)
    return f"{default}://{url}" if match is None else match[0].lower() + url[match.end() :]


def _check(url: str) -> None:
    """Check port and login of the URL of a server.

    :raises ValueError: they are malformed, or the login is not allowed here; the text shows no login
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"has a bad port in {redact_url(url)} ({_ENCODED})") from None
    if port == 0:
        raise ValueError("has port 0, on which no server listens")
    if "@" in _behind_host(parts):  # the parser took a part of the login for host and port
        raise ValueError(f"has an @ behind the host, in {redact_url(url)} ({_ENCODED})")
    if "@" in parts.netloc and not SCHEMES[parts.scheme].url_login:
        raise ValueError(f"holds a login, in {redact_url(url)}: give it by the options user and password")


def _behind_host(parts: SplitResult) -> str:
    return f"{parts.path}?{parts.query}#{parts.fragment}"


def log_urls(value: str) -> tuple[str, ...]:
    """Servers of one log, with its stream: ``nats://a:4222,b:4222/STREAM``, ``mlp://host:9999/stream``,
    ``memory://name``."""
    found = urls(value)
    middleware = middleware_of(found)
    if middleware.log_bridge is None:
        raise ValueError("must name a log: nats://host:4222/STREAM, mlp://host:9999/stream")
    streams = {path for url in found if (path := urlsplit(url).path.strip("/"))}
    if len(streams) > 1:
        raise ValueError("names different streams")
    if not streams and middleware.named_streams:
        raise ValueError("must name the stream of the log: nats://host:4222/STREAM, mlp://host:9999/stream")
    return found


def split_stream(found: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Servers and stream of a result of :func:`log_urls`; None: the server is the log."""
    streams = [path for url in found if (path := urlsplit(url).path.strip("/"))]
    servers = tuple(urlunsplit(urlsplit(url)._replace(path="")) for url in found)
    return servers, streams[0] if streams else None


def is_port(text: str) -> bool:
    """Whether it is a port, where 0 lets the system choose. Sockets silently take another one for 65536 and more."""
    return text.isdecimal() and int(text) < 65_536


def on_all_interfaces(host: str) -> bool:
    """Whether every network that the machine is in reaches a listener at this host."""
    return host.strip("[]") in ("", "*", "0.0.0.0", "::")

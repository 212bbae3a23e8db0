"""URLs of servers: the bridge of each scheme, parsing of comma lists, and redaction of logins."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

#: URL schemes and the bridge that serves them.
SCHEMES = {"nats": "nats", "tls": "nats", "mlp": "malamute", "memory": "memory", "tango": "tango"}

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: A comma that begins the next URL; others may stand in a password.
_NEXT_URL = re.compile(rf",(?=\s*(?i:{'|'.join(SCHEMES)})://)")
#: Host; then nothing, a port, or a path: all else is masked.
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:/?#\[\]]*)(?:(?::\d*)?(?:[/?#].*)?(\Z)|.*)", re.DOTALL)


def urls(value: str) -> tuple[str, ...]:
    """A comma list of servers of one middleware; ``nats://`` where no scheme is given."""
    urls = tuple(part.strip() for part in value.split(",") if part.strip())
    if not urls:
        raise ValueError("must name at least one server, like nats://host:4222")
    urls = tuple(url if _SCHEME.match(url) else f"nats://{url}" for url in urls)
    schemes = {url.split("://", 1)[0].lower() for url in urls}
    unknown = schemes - SCHEMES.keys()
    if unknown:
        raise ValueError(f"has the unknown scheme {sorted(unknown)[0]}://; known are {', '.join(sorted(SCHEMES))}")
    if len({SCHEMES[scheme] for scheme in schemes}) > 1:
        raise ValueError("mixes servers of different middlewares")
    for url in urls:
        try:
            port = urlsplit(url).port
        except ValueError:
            raise ValueError(
                f"has a bad port in {redact_url(url)} (in a password, / ? # @ and , are percent-encoded)"
            ) from None
        if port == 0:
            raise ValueError("has port 0, which nobody listens on")
    return urls


def log_urls(value: str) -> tuple[str, ...]:
    """Servers of one log, with its stream: ``nats://a:4222,b:4222/STREAM``, ``mlp://host:9999/stream``,
    ``memory://name``."""
    found = urls(value)
    bridge = SCHEMES[urlsplit(found[0]).scheme]
    if bridge == "tango":
        raise ValueError("must name a log: nats://host:4222/STREAM, mlp://host:9999/stream")
    streams = {path for url in found if (path := urlsplit(url).path.strip("/"))}
    if len(streams) > 1:
        raise ValueError("names different streams")
    if not streams and bridge != "memory":
        raise ValueError("must name the stream of the log: nats://host:4222/STREAM, mlp://host:9999/stream")
    return found


def split_stream(found: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """What :func:`log_urls` gave, as the servers alone and the stream; None: the server is the log."""
    streams = [path for url in found if (path := urlsplit(url).path.strip("/"))]
    servers = tuple(urlunsplit(urlsplit(url)._replace(path="")) for url in found)
    return servers, streams[0] if streams else None


def redact_url(text: str, mask: str = "***@") -> str:
    """A URL, or several separated by commas, with ``mask`` in place of the login (user, password or token).

    Works on the text and not on the parsed URL: a password with ``/``, ``?`` or ``#`` makes the parser end the host
    there and take the password for port and path. The login is all that stands between ``://`` (or the start) and the
    last ``@``. Where the port is no number, it is masked with all that follows: it may be part of a password that was
    cut at a comma.
    """
    return ",".join(_redact_one(url.strip(), mask) for url in _NEXT_URL.split(text))


def _redact_one(url: str, mask: str) -> str:
    match = _SCHEME.match(url)
    scheme = match[0] if match else ""
    _, at, address = url.removeprefix(scheme).rpartition("@")
    host, whole = match.groups() if (match := _ADDRESS.fullmatch(address)) else ("", None)
    if whole is None:
        address = f"{host}:***"
    return f"{scheme}{mask if at else ''}{address}"

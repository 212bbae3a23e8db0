"""The address of NATS when no option says it: ``NATS_URL``, or a context of the program ``nats`` (NATS ADR-21)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..contracts.errors import ConfigError

#: Options that say where to connect.
PLACES = {"url", "servers", "transport", "bridge"}
#: Key of a context -> option.
_OPTIONS = {
    "url": "url", "user": "user", "password": "password", "token": "token", "creds": "credentials", "nkey": "nkeySeed",
    "cert": "tlsCert", "key": "tlsKey", "ca": "tlsCa", "tls_first": "tlsHandshakeFirst", "jetstream_domain": "jsDomain",
    "jetstream_api_prefix": "jsApiPrefix",
}  # fmt: skip
_APIS = {"jsdomain", "jsapiprefix"}
_LOGINS = {"user", "password", "token", "credentials", "nkeyseed"}
#: Keys of a context that only describe it.
_IGNORED = {"description", "color_scheme", "jetstream_event_prefix", "windows_cert_store"}


def with_nats_environment(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Options completed by the first of: what ``given`` says, ``NATS_URL``, the context that ``NATS_CONTEXT`` names,
    the context that ``nats context select`` has selected. ``NATS_URL`` takes no login from a context, which may be that
    of another server.

    :raises ConfigError: the context is not there, is no JSON, or sets what is not supported
    """
    if has_other_place(given):
        return dict(given)
    if url := environ.get("NATS_URL"):
        return {**given, "url": url}
    folder = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config"), "nats")
    name = environ.get("NATS_CONTEXT") or _selected(folder)
    if not name:
        return dict(given)
    return completed(given, _context(folder / "context" / f"{name}.json", name))


def has_other_place(given: Mapping[str, str], found: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether ``given`` connects elsewhere than ``found`` (options in lower case; none: it is not known where), so that
    it takes nothing of it, whose login is that of another server. ``properties`` is a place where a ``transport`` of
    ``found`` is looked up."""
    low = {name.lower(): value for name, value in given.items()}
    places = {*PLACES, "properties"} if "transport" in found else PLACES
    return any(found.get(place) != low[place] for place in places & low.keys())


def completed(given: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """``given``, and what it leaves open of ``found``: a login is one thing, of which no part is taken to another."""
    low = {name.lower() for name in given}
    said = low.union(*(one_way for one_way in (_LOGINS, _APIS) if low & one_way))
    return {**{option: value for option, value in found.items() if option.lower() not in said}, **given}


def _selected(folder: Path) -> str:
    try:
        return (folder / "context.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _context(file: Path, name: str) -> dict[str, str]:
    where = f"the NATS context {name!r} ({file})"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(f"{where} cannot be read: {type(e).__name__}; give option url, or select another") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is no JSON object; give option url, or select another")
    unknown = sorted(key for key, value in content.items() if value and key not in {*_OPTIONS, *_IGNORED})
    if unknown:
        raise ConfigError(f"{where} sets {', '.join(unknown)}, which is not supported; give option url and the login")
    return {option: str(content[key]) for key, option in _OPTIONS.items() if content.get(key)}

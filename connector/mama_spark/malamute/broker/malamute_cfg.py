"""Reads the configuration file of the original broker, ``malamute.cfg`` (ZPL: names and values by indentation).

What has no counterpart here is named in a warning. A password file is read from the folder of the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from mama_spark.contracts.errors import ConfigError

from .broker.security import Security
from .broker.settings import BrokerSettings
from .session.mailbox_store import Limits
from .session.settings import SessionSettings

logger = logging.getLogger(__name__)

#: Path and value of each line of a file, in order.
Entries = list[tuple[str, str]]
_BIND = "mlm_server/bind/endpoint"
_MECHANISM, _PASSWORDS = "mlm_server/security/mechanism", "server/auth/plain"
_TIMEOUT = "server/timeout"
_MAILBOX, _SERVICE = "mlm_server/mailbox", "mlm_server/service/queue"
_KINDS = ("limit", "warn")
#: Milliseconds of ``server/timeout`` in a file that does not have it.
_DEFAULT_TIMEOUT_MS = "60000"
#: Settings that change nothing a client can observe, with the value that means nothing.
_IGNORED = {"server/background": "0", "server/workdir": ".", "server/verbose": "0", "server/auth/verbose": "0"}


def load_malamute_cfg(path: str | Path, bind: Iterable[str] | None = None) -> BrokerSettings:
    """The settings in a file of the original broker; its streams are ``simple``.

    :param bind: replaces the endpoints in the file
    :raises ConfigError: names the file and the line or setting
    """
    entries = parse_zpl(_read(path), str(path))
    values = dict(entries)
    endpoints = tuple(bind or (value for name, value in entries if name == _BIND))
    if not endpoints:
        raise ConfigError(f"{path}: it names no endpoint ({_BIND})")
    machine = SessionSettings(
        timeout=_number(path, _TIMEOUT, values.get(_TIMEOUT, _DEFAULT_TIMEOUT_MS)) / 1000,
        mailboxes=_limits(path, values, _MAILBOX),
        services=_limits(path, values, _SERVICE),
    )
    _warn_about_others(path, entries)
    return BrokerSettings(endpoints, machine, security=_security(path, values))


def parse_zpl(text: str, where: str = "") -> Entries:
    """Lines of a ZPL text as paths and values: four blanks of indentation are one level; ``#`` begins a comment.

    :raises ConfigError: a line is no name with a value, or is indented wrongly
    """
    found: Entries = []
    path: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        name, sep, value = line.partition("=")
        if not sep:
            name = line.partition("#")[0]
        if not name.strip() or name.lstrip().startswith("#"):
            continue
        level, rest = divmod(len(name) - len(name.lstrip(" ")), 4)
        if rest or level > len(path) or "\t" in name:
            raise ConfigError(f"{where}: line {number}: four blanks are one level, got {line!r}")
        path[level:] = [name.strip()]
        if sep:
            found.append(("/".join(path), _unquoted(value.strip())))
    return found


def _unquoted(value: str) -> str:
    for quote in "\"'":
        if value.startswith(quote) and quote in value[1:]:
            return value[1 : value.index(quote, 1)]
    return value.partition("#")[0].strip()


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: no text: {e}") from e


def _number(path: str | Path, name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ConfigError(f"{path}: {name} must be a number, got {value!r}")
    return int(value)


def _limits(path: str | Path, values: dict[str, str], at: str) -> Limits:
    """Octets of one mailbox, or of the queue of one service."""

    def limit(name: str) -> int | None:
        value = values.get(f"{at}/{name}", "max")
        return None if value == "max" else _number(path, f"{at}/{name}", value)

    return Limits(each=limit("size-limit"), total=None, warn=limit("size-warn"))


def _security(path: str | Path, values: dict[str, str]) -> Security:
    mechanism = values.get(_MECHANISM, "null")
    if mechanism == "null":
        return Security()
    if mechanism != "plain":
        raise ConfigError(f"{path}: {_MECHANISM} = {mechanism} cannot be read from this file: see [security] in TOML")
    passwords = values.get(_PASSWORDS)
    if passwords is None:
        raise ConfigError(f"{path}: {_MECHANISM} = plain needs {_PASSWORDS}, a file of passwords")
    file = Path(path).parent / passwords
    users = dict(parse_zpl(_read(file), str(file)))
    if not users:
        raise ConfigError(f"{file}: it has no user")
    return Security(users)


def _warn_about_others(path: str | Path, entries: Entries) -> None:
    sizes = (f"{at}/size-{kind}" for at in (_MAILBOX, _SERVICE) for kind in _KINDS)
    known = {_BIND, _MECHANISM, _PASSWORDS, _TIMEOUT, *sizes}
    for name, value in entries:
        if name not in known and _IGNORED.get(name) != value and name.rpartition("/")[2] != "echo":
            logger.warning("%s: %s = %s has no effect here", path, name, value)

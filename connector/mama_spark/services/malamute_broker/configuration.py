"""The broker's configuration file: TOML, see ``conf/broker.toml``. ``${NAME}`` is the environment variable NAME."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mama_spark.errors import ConfigError, MamaError
from mama_spark.malamute.protocol.patterns import BadPattern, Pattern
from mama_spark.options import duration
from mama_spark.options.values import byte_size

from .broker.security import Security
from .broker.settings import BrokerSettings, EngineChoice
from .engines import engine_class
from .session.backlog import BacklogPolicy
from .session.byte_queue import Overflow
from .session.clients import SessionSettings
from .session.mailbox_store import Limits

Table = Mapping[str, Any]
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a time: milliseconds, or such as '10s'")
    return 0.0 if value == 0 else duration(str(value))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number above 0")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def _overflow(value: Any) -> Overflow:
    try:
        return Overflow(value)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(Overflow)}") from None


def _behind(value: Any) -> BacklogPolicy:
    try:
        return BacklogPolicy(value)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(BacklogPolicy)}") from None


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("must be a list of texts")
    return tuple(value)


Keys = Mapping[str, tuple[str, Callable[[Any], Any]]]  #: key in the file -> parameter, how it is read
_BROKER: Keys = {
    "bind": ("bind", _text),
    "high_water": ("high_water", _count),
    "max_message": ("max_message", byte_size),
    "linger": ("linger", _seconds),
    "metrics": ("metrics", _text),
    "report": ("report", _seconds),
}
_CLIENTS: Keys = {
    "timeout": ("timeout", _seconds),
    "queue": ("queue", byte_size),
    "overflow": ("overflow", _overflow),
    "streams": ("streams", _count),
    "patterns": ("patterns", _count),
    "backlog": ("backlog", byte_size),
    "behind": ("behind", _behind),
}
_LETTERS: Keys = {
    "each": ("each", byte_size),
    "total": ("total", byte_size),
    "warn": ("warn", byte_size),
    "overflow": ("overflow", _overflow),
    "count": ("count", _count),
}
_SECURITY: Keys = {
    "curve_secret_key": ("curve_secret_key", _text),
    "curve_clients": ("curve_clients", _texts),
}
_EVENTS: Keys = {
    "stream": ("stream", _text),
    "folder": ("folder", _text),
    "max_age": ("max_age", _seconds),
    "max_octets": ("max_octets", byte_size),
}
#: Seconds that what happened is kept, if the file does not say; the limit also bounds what readers have to catch up.
EVENTS_AGE = 7 * 86400.0
_TABLES = ("broker", "clients", "mailboxes", "services", "events", "security", "stream")


def load(path: str | Path | None, bind: str | None = None) -> BrokerSettings:
    """What the file says; without one, the defaults.

    :param bind: instead of what the file says
    :raises ConfigError: names the file, the table and the key
    """
    content = _read(path) if path is not None else {}
    where = f"{path}: "
    for name in content:
        if name not in _TABLES:
            raise ConfigError(f"{where}unknown table [{name}]{_nearest(name, _TABLES)}")
    mailboxes, services = (Limits(**_table(where, content, name, _LETTERS)) for name in ("mailboxes", "services"))
    events, kept = _events(where, content)
    machine = SessionSettings(
        mailboxes=mailboxes, services=services, events=events, **_table(where, content, "clients", _CLIENTS)
    )
    broker = _table(where, content, "broker", _BROKER)
    if bind is not None:
        broker["bind"] = bind
    security = _security(where, content.get("security", {}))
    return BrokerSettings(machine=machine, engines=(*kept, *_streams(where, content)), security=security, **broker)


def _read(path: str | Path) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            content = tomllib.load(file)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not TOML: {e}") from e
    filled: dict[str, Any] = _filled(str(path), content)
    return filled


def _filled(path: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(path, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(path, one) for one in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(f"{path}: the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(variable, value)


def _table(where: str, content: Table, name: str, keys: Keys) -> dict[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}[{name}] is a table")
    found = {}
    for key, value in table.items():
        if key not in keys:
            raise ConfigError(f"{where}[{name}] unknown key {key!r}{_nearest(key, keys)}")
        parameter, parse = keys[key]
        try:
            found[parameter] = parse(value)
        except ValueError as e:
            raise ConfigError(f"{where}[{name}] {key} {e}") from None
    return found


def _events(where: str, content: Table) -> tuple[bytes, tuple[EngineChoice, ...]]:
    """Name of the broker's own stream, and how it is kept: durable if the table says where."""
    values = _table(where, content, "events", _EVENTS)
    name = values.pop("stream", "").encode() or SessionSettings().events
    if "folder" not in values:
        if values:
            raise ConfigError(f"{where}[events] folder is missing: without, what happens is not kept")
        return name, ()
    values.setdefault("max_age", EVENTS_AGE)
    if not values["max_age"]:
        del values["max_age"]  # for ever
    pattern = b"^" + re.escape(name) + b"$"
    return name, (EngineChoice(pattern, "durable", values),)


def _streams(where: str, content: Table) -> tuple[EngineChoice, ...]:
    streams = content.get("stream", [])
    if not isinstance(streams, list) or not all(isinstance(one, dict) for one in streams):
        raise ConfigError(f"{where}streams stand in tables [[stream]]")
    choices = []
    for number, table in enumerate(streams, 1):
        rest = dict(table)
        try:
            pattern, engine = _text(rest.pop("pattern", None)), _text(rest.pop("engine", None))
        except ValueError:
            raise ConfigError(f"{where}[[stream]] {number} needs the texts pattern and engine") from None
        try:
            Pattern(pattern.encode())
            engine_class(engine)(pattern.encode(), rest)  # checks its settings; nothing is opened
        except (BadPattern, MamaError) as e:
            raise ConfigError(f"{where}[[stream]] {number}: {e}") from e
        choices.append(EngineChoice(pattern.encode(), engine, rest))
    return tuple(choices)


def _security(where: str, table: Any) -> Security:
    users = table.get("users", {}) if isinstance(table, dict) else None
    if not isinstance(users, dict) or not all(isinstance(password, str) for password in users.values()):
        raise ConfigError(f"{where}[security.users] holds a password by user name")
    rest = {key: value for key, value in table.items() if key != "users"}
    values = _table(where, {"security": rest}, "security", _SECURITY)
    try:
        return Security(users, **values)
    except ConfigError as e:
        raise ConfigError(f"{where}[security] {e}") from None


def _nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"

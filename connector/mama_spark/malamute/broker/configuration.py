"""The broker's configuration file: TOML, see ``conf/broker.toml``. ``${NAME}`` is the environment variable NAME."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.malamute.protocol.patterns import BadPattern, Pattern
from mama_spark.options.declare import option
from mama_spark.options.document import FileSection
from mama_spark.options.tables import parse_table, read_toml
from mama_spark.options.times import duration_or_none
from mama_spark.options.transport import CHANGES_KEPT
from mama_spark.options.values import byte_size, integer, nearest, nonempty_text

from .broker.security import Security
from .engines import engine_class
from .engines.registry import settings_classes
from .session.settings import Limits, SessionSettings


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine of streams whose name matches the pattern; the first match applies."""

    pattern: bytes
    engine: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords


def _texts(value: Any) -> str | tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError("must be a text, or a list of texts")
    return value if isinstance(value, str) else tuple(found)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The table ``[broker]`` and the settings from the other tables; times in seconds."""

    bind: str | tuple[str, ...] = option(
        "text or list of texts", _texts, "tcp://127.0.0.1:9999", "broker",
        "Endpoints: `tcp://*:9999` is on all interfaces, `tcp://[::1]:9999` is IPv6, also `ipc`; port `*` or 0: "
        "the system chooses.",
    )  # fmt: skip
    machine: SessionSettings = field(default_factory=SessionSettings)
    engines: tuple[EngineChoice, ...] = ()
    high_water: int = option(
        "integer", integer(1), 1000, "broker", "Messages that ZeroMQ holds for one client, in each direction."
    )
    max_message: int = option(
        "size", byte_size, 64 * 1024 * 1024, "broker",
        "Largest frame; a larger one disconnects its client.", shown="64 MiB",
    )  # fmt: skip
    linger: float = option(
        "duration", duration_or_none, 5.0, "broker",
        "Longest wait of a clean stop for clients.", shown="5s",
    )  # fmt: skip
    security: Security = field(default_factory=Security)
    metrics: str | None = option(
        "text", nonempty_text, None, "broker",
        "`host:port` of an HTTP server: `/metrics`, `/clients`, `/streams`.",
        shown="none",
    )  # fmt: skip
    report: float = option(
        "duration", duration_or_none, 0.0, "broker", "Interval of the lines of `mama broker`; 0: none."
    )

    @property
    def endpoints(self) -> tuple[str, ...]:
        return (self.bind,) if isinstance(self.bind, str) else self.bind


_TABLES = ("broker", "clients", "mailboxes", "services", "events", "security", "stream")


@dataclass(frozen=True, slots=True)
class EventsTable:
    """The table ``[events]``: the broker's own stream."""

    stream: str = option(
        "text", nonempty_text, SessionSettings().events.decode(), "events",
        "Name of the stream.", shown="`_MAMA_EVENTS`",
    )  # fmt: skip
    folder: str | None = option(
        "path", nonempty_text, None, "events",
        "Folder of the stored events; `mamadiscovery` and `announce` need it.", shown="not kept",
    )  # fmt: skip
    max_age: float = option(
        "duration", duration_or_none, CHANGES_KEPT, "events",
        "How long events are kept; 0: for ever.", shown="7d",
    )  # fmt: skip
    max_bytes: int | None = option("size", byte_size, None, "events", "Most bytes of all events.", shown="no limit")


def load(path: str | Path | None, bind: str | Sequence[str] | None = None) -> BrokerSettings:
    """Load the settings from the file; without a file, the defaults.

    :param bind: replaces the endpoints in the file
    :raises ConfigError: names the file, the table and the key
    """
    content = read_toml(path) if path is not None else {}
    for name in content:
        if name not in _TABLES:
            raise ConfigError(f"{path}: unknown table [{name}]{nearest(name, _TABLES)}")

    def table(name: str, declared: type) -> dict[str, Any]:
        return parse_table(declared, content.get(name, {}), f"{path}: [{name}]")

    mailboxes, services = (Limits(**table(name, Limits)) for name in ("mailboxes", "services"))
    events, kept = _events(f"{path}: [events]", table("events", EventsTable))
    machine = SessionSettings(
        mailboxes=mailboxes, services=services, events=events, **table("clients", SessionSettings)
    )
    broker = table("broker", BrokerSettings)
    if bind is not None:
        broker["bind"] = bind if isinstance(bind, str) else tuple(bind)
    security = _security(f"{path}: [security]", content.get("security", {}))
    streams = _streams(str(path), content.get("stream", []))
    return BrokerSettings(machine=machine, engines=(*kept, *streams), security=security, **broker)


def _events(where: str, values: dict[str, Any]) -> tuple[bytes, tuple[EngineChoice, ...]]:
    """Name of the broker's own stream, and its engine: durable if the table has a folder."""
    table = EventsTable(**values)
    name = table.stream.encode()
    if table.folder is None:
        if values.keys() - {"stream"}:
            raise ConfigError(f"{where} folder is missing: without, what happens is not kept")
        return name, ()
    settings: dict[str, Any] = {"folder": table.folder}
    if table.max_age:
        settings["max_age"] = timedelta(seconds=table.max_age)
    if table.max_bytes is not None:
        settings["max_bytes"] = table.max_bytes
    pattern = b"^" + re.escape(name) + b"$"
    return name, (EngineChoice(pattern, "durable", settings),)


def _streams(path: str, streams: Any) -> tuple[EngineChoice, ...]:
    if not isinstance(streams, list) or not all(isinstance(one, dict) for one in streams):
        raise ConfigError(f"{path}: streams stand in tables [[stream]]")
    choices = []
    for number, table in enumerate(streams, 1):
        rest = dict(table)
        try:
            pattern, engine = nonempty_text(rest.pop("pattern", None)), nonempty_text(rest.pop("engine", None))
        except ValueError:
            raise ConfigError(f"{path}: [[stream]] {number} needs the texts pattern and engine") from None
        try:
            Pattern(pattern.encode())
            engine_class(engine)(pattern.encode(), rest)  # checks its settings; nothing is opened
        except (BadPattern, MamaError) as e:
            raise ConfigError(f"{path}: [[stream]] {number}: {e}") from e
        choices.append(EngineChoice(pattern.encode(), engine, rest))
    return tuple(choices)


def _security(where: str, table: Any) -> Security:
    users = table.get("users", {}) if isinstance(table, dict) else None
    if not isinstance(users, dict) or not all(isinstance(password, str) for password in users.values()):
        raise ConfigError(f"{where} users holds a password by user name")
    values = parse_table(Security, {key: value for key, value in table.items() if key != "users"}, where)
    try:
        return Security(users, **values)
    except ConfigError as e:
        raise ConfigError(f"{where} {e}") from None


def documents() -> list[FileSection]:
    """The file for ``mama docs``."""
    tables = (
        ("`[broker]`", BrokerSettings),
        ("`[clients]`", SessionSettings),
        ("`[mailboxes]`, and the same keys in `[services]`", Limits),
        ("`[events]`", EventsTable),
        ("`[security]`; `[security.users]` has a password by user name", Security),
        *((f'`[[stream]]` with `engine = "{name}"`', cls) for name, cls in settings_classes().items()),
    )
    return [FileSection("Broker: `mama broker --conf-file conf/broker.toml`", tables)]

"""What the broker's configuration may say for a stream that lives in NATS JetStream. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from mama_spark.errors import ConfigError

from .names import encode_name

MARK = "{stream}"
_CONNECTION = ("credentials", "nkey_seed", "user", "password", "token", "tls_ca", "tls_cert", "tls_key")
_STORAGE = ("file", "memory")


@dataclass(frozen=True, slots=True, repr=False)
class JetStreamSettings:
    """
    :ivar servers: URLs of NATS servers, with commas between them; any of them will do
    :ivar credentials: and those below to ``tls_key``: how to log in, as of the bridge ``nats``
    :ivar stream: name of the JetStream stream; ``{stream}`` is the name of the Malamute stream
    :ivar subjects: prefix of its subjects
    :ivar create: make the stream when it is missing; what follows here counts only then
    :ivar replicas: servers that keep it
    :ivar storage: ``file`` or ``memory``
    :ivar max_age: seconds for which a message is kept; None, here and below, = no limit
    :ivar max_octets: of all messages together
    :ivar max_messages: how many are kept. Beyond a limit the oldest go
    :ivar dedup_window: seconds in which the server stores an id once; an outage may not be longer for messages that
        were on the way when it began
    :ivar buffer: octets of messages that wait in memory during an outage; what comes beyond is refused
    """

    servers: str
    credentials: str | None = None
    nkey_seed: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    stream: str = "mlp-{stream}"
    subjects: str = "mlp.{stream}"
    create: bool = True
    replicas: int = 1
    storage: str = "file"
    max_age: float | None = None
    max_octets: int | None = None
    max_messages: int | None = None
    dedup_window: float = 120.0
    buffer: int = 64 * 1024 * 1024

    def __repr__(self) -> str:
        return f"<JetStreamSettings {self.stream!r}, {self.subjects!r}>"

    @classmethod
    def parse(cls, stream: bytes, settings: Mapping[str, Any]) -> JetStreamSettings:
        """:raises ConfigError: a setting is unknown, missing or out of range; the text names it, never a secret"""
        where = f"jetstream stream {stream.decode('utf-8', 'replace')!r}"
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
                raise ConfigError(f"{where}: no setting {name!r}{hint}")
        if "servers" not in settings:
            raise ConfigError(f"{where}: the setting servers is missing")
        made = cls(**settings)
        for name in ("servers", "stream", "subjects", *(n for n in _CONNECTION if n in settings)):
            if not isinstance(getattr(made, name), str) or not getattr(made, name):
                raise ConfigError(f"{where}: {name} must be a text")
        made._check_names(where)
        made._check_numbers(where)
        if made.storage not in _STORAGE:
            raise ConfigError(f"{where}: storage is {' or '.join(_STORAGE)}, not {made.storage!r}")
        if not isinstance(made.create, bool):
            raise ConfigError(f"{where}: create is true or false")
        return made

    def _check_names(self, where: str) -> None:
        if encode_name(self.stream.replace(MARK, "").encode()).count("%") and self.stream != MARK:
            raise ConfigError(f"{where}: stream may have letters, digits, - and _, and {MARK}, not {self.stream!r}")
        tokens = self.subjects.replace(MARK, "x").split(".")
        if not all(token and encode_name(token.encode()) == token for token in tokens):
            raise ConfigError(f"{where}: subjects must be tokens such as mlp.{MARK}, not {self.subjects!r}")

    def _check_numbers(self, where: str) -> None:
        for name, low, kinds, none in (
            ("replicas", 1, (int,), False),
            ("max_age", 1e-3, (int, float), True),
            ("max_octets", 1, (int,), True),
            ("max_messages", 1, (int,), True),
            ("dedup_window", 1, (int, float), False),
            ("buffer", 1, (int,), False),
        ):
            value = getattr(self, name)
            if none and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= 1e15:
                what = "seconds" if float in kinds else "a whole number"
                raise ConfigError(f"{where}: {name} must be {what}, {low:g} or more, not {value!r}")

    def names(self, stream: bytes) -> tuple[str, str]:
        """Name and subject prefix of this stream in JetStream.

        :raises ConfigError: the name is too long for a JetStream stream
        """
        token = encode_name(stream)
        name = self.stream.replace(MARK, token)
        if len(name) > 255:
            raise ConfigError(f"the name of stream {stream!r} is too long for JetStream, as {name!r}")
        return name, self.subjects.replace(MARK, token)

    @property
    def connection(self) -> dict[str, Any]:
        """For :class:`~mama_spark.bridges.nats.settings.NatsSettings`."""
        servers = tuple(one.strip() for one in self.servers.split(",") if one.strip())
        return {"servers": servers, **{name: getattr(self, name) for name in _CONNECTION}}

    def configuration(self, name: str, prefix: str) -> dict[str, Any]:
        """Of the stream that is made."""
        return {
            "name": name,
            "subjects": [f"{prefix}.>"],
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_age": int((self.max_age or 0) * 1e9),
            "max_bytes": self.max_octets or -1,
            "max_msgs": self.max_messages or -1,
            "duplicate_window": int(min(self.dedup_window, self.max_age or self.dedup_window) * 1e9),
            "discard": "old",
        }

"""Settings of a stream that lives in NATS JetStream: a table ``[[stream]]`` of the broker's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.served_log import LogSettings
from mama_spark.options import SinkOptions, TransportOptions
from mama_spark.options.declare import option
from mama_spark.options.tables import parse_table
from mama_spark.options.times import duration
from mama_spark.options.transport import NATS_CONNECTION
from mama_spark.options.urls import nats_urls
from mama_spark.options.values import (
    file_path,
    integer,
    nonempty_text,
    one_of,
    positive_size,
    single_token,
    subject_prefix,
    true_or_false,
)

from .message_codec import encode_name

MARK = "{stream}"
_GROUP = "stream: jetstream"
_MOST = 10**15
#: Bytes.
MAX_NAME = 255


@dataclass(frozen=True, slots=True, repr=False)
class JetStreamSettings:
    """Seconds and bytes; None = no limit. ``credentials`` to ``js_api_prefix``: as in the bridge ``nats``."""

    servers: tuple[str, ...] = option(
        "URLs", nats_urls, (), _GROUP, "NATS servers, separated by commas.", shown="needed", secret=True
    )
    credentials: str | None = option("path", file_path, None, _GROUP, "File with JWT and nkey seed.", secret=True)
    nkey_seed: str | None = option("path", file_path, None, _GROUP, "File with an nkey seed.", secret=True)
    user: str | None = option("text", nonempty_text, None, _GROUP, "User name.", secret=True)
    password: str | None = option("text", nonempty_text, None, _GROUP, "Password of `user`.", secret=True)
    token: str | None = option("text", nonempty_text, None, _GROUP, "Authentication token.", secret=True)
    tls_ca: str | None = option("path", file_path, None, _GROUP, "CA certificates.")
    tls_cert: str | None = option("path", file_path, None, _GROUP, "Client certificate; goes with `tls_key`.")
    tls_key: str | None = option("path", file_path, None, _GROUP, "Private key of `tls_cert`.", secret=True)
    tls_handshake_first: bool = option(
        "boolean", true_or_false, False, _GROUP, "TLS begins before the server's greeting (`handshake_first`)."
    )
    js_domain: str | None = option(
        "text", single_token, None, _GROUP, "JetStream domain of the stream.", shown="that of the server"
    )
    js_api_prefix: str | None = option(
        "subject", subject_prefix, None, _GROUP,
        "Prefix of requests, where the account imports another account's API.", shown="`$JS.API`",
    )  # fmt: skip
    stream: str = option(
        "text", nonempty_text, "mlp-{stream}", _GROUP, "Name in JetStream; `{stream}` is the Malamute stream."
    )
    subjects: str = option("text", nonempty_text, "mlp.{stream}", _GROUP, "Prefix of the subjects.")
    create: bool = option(
        "boolean", true_or_false, True, _GROUP,
        "Create a missing stream, with the settings below.",
    )  # fmt: skip
    replicas: int = option("integer", integer(1, _MOST), 1, _GROUP, "Servers that keep the stream.")
    storage: str = option("`file`, `memory`", one_of("file", "memory"), "file", _GROUP, "Where the servers keep it.")
    max_age: float | None = option("duration", duration, None, _GROUP, "How long a message is kept.", shown="no limit")
    max_bytes: int | None = option("size", positive_size, None, _GROUP, "Most bytes of all messages.", shown="no limit")
    max_messages: int | None = option(
        "integer", integer(1, _MOST), None, _GROUP, "Most messages; beyond, the oldest go.", shown="no limit"
    )
    max_per_subject: int | None = option(
        "integer", integer(1, _MOST), None, _GROUP,
        "Most messages of a subject; beyond, the oldest go.", shown="no limit",
    )  # fmt: skip
    dedup_window: float = option(
        "duration", duration, 120.0, _GROUP,
        "How long the server stores an id once, a second or more.", shown="2m",
    )  # fmt: skip
    on_silent_server: str = option(
        "`wait`, `publish`", one_of("wait", "publish"), "wait", _GROUP,
        "When a server that messages were sent to does not answer: wait, or send them again after 4 s.",
    )  # fmt: skip
    buffer: int = option(
        "size", positive_size, 64 * 1024 * 1024, _GROUP,
        "Messages kept in memory while NATS is away; more are refused.", shown="64 MiB",
    )  # fmt: skip

    @classmethod
    def parse(cls, stream: bytes, settings: Mapping[str, Any]) -> JetStreamSettings:
        """Settings of one stream, from its table in the broker's configuration.

        :raises ConfigError: a setting is unknown, missing or out of range; the text names it, never a secret
        """
        where = f"jetstream stream {stream.decode('utf-8', 'replace')!r}:"
        made = cls(**parse_table(cls, settings, where, required=("servers",)))
        made._check_names(where)
        if (made.tls_cert is None) != (made.tls_key is None):
            raise ConfigError(f"{where} tls_cert and tls_key go together")
        if made.js_domain is not None and made.js_api_prefix is not None:
            raise ConfigError(f"{where} js_domain and js_api_prefix exclude each other")
        if made.dedup_window < 1:
            raise ConfigError(f"{where} dedup_window must be a second or more, not {made.dedup_window:g} s")
        if made.max_age is not None and made.max_age < 1e-3:
            raise ConfigError(f"{where} max_age must be a millisecond or more")
        return made

    def _check_names(self, where: str) -> None:
        if MARK not in self.stream and len(self.stream) > MAX_NAME:
            raise ConfigError(f"{where} stream has at most {MAX_NAME} characters")
        if encode_name(self.stream.replace(MARK, "").encode()).count("%") and self.stream != MARK:
            raise ConfigError(f"{where} stream may have letters, digits, - and _, and {MARK}, not {self.stream!r}")
        tokens = self.subjects.replace(MARK, "x").split(".")
        if not all(token and encode_name(token.encode()) == token for token in tokens):
            raise ConfigError(f"{where} subjects must be tokens such as mlp.{MARK}, not {self.subjects!r}")

    def names(self, stream: bytes) -> tuple[str, str]:
        """Name and subject prefix of this stream in JetStream; a name that is too long there ends with its hash."""
        token = encode_name(stream)
        name = self.stream.replace(MARK, token)
        if len(name) > MAX_NAME:
            digest = sha256(name.encode()).hexdigest()[:32]
            name = f"{name[: MAX_NAME - 33]}-{digest}"
        return name, self.subjects.replace(MARK, token)

    @property
    def _connection(self) -> dict[str, Any]:
        return {"url": self.servers, **{name: getattr(self, name) for name in NATS_CONNECTION}}

    @property
    def transport(self) -> TransportOptions:
        return TransportOptions(**self._connection)

    def publishing(self, name: str) -> SinkOptions:
        return SinkOptions(**self._connection, stream=name, ack_mode="message", exactly_once=True)

    def log_settings(self, topic: str) -> LogSettings:
        return LogSettings(
            (topic,), self.max_age, self.max_bytes, self.max_messages, self.max_per_subject, self.dedup_window,
            self.replicas, self.storage,
        )  # fmt: skip

"""Options with which every format reaches a middleware and its discovery. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..contracts.middlewares import MIDDLEWARES, Middleware, find
from .declare import CONNECTION, Options, camel, option, require
from .scopes import MALAMUTE, NATS, STORED, Scope
from .times import duration
from .urls import DEFAULT_SERVER, middleware_of, urls
from .values import boolean, file_path, one_of, single_token, subject_prefix, text, topic_name

#: Options of the login to NATS, of TLS, and of the place of JetStream.
NATS_CONNECTION = (
    *("credentials", "nkey_seed", "user", "password", "token", "tls_ca", "tls_cert", "tls_key"),
    *("tls_handshake_first", "js_domain", "js_api_prefix"),
)
CONNECT, DISCOVERY = CONNECTION, "Discovery"
#: Seconds that streams of discovery which we make keep what readers may have to catch up with.
CHANGES_KEPT = 7 * 86_400.0
_ANNOUNCED = Scope(formats=("mamapub", "mamadiscovery"))


def _bridge(value: Any) -> str:
    name = str(value).strip().lower()
    return name if find(name) is not None else one_of(*sorted(MIDDLEWARES))(name)


@dataclass(frozen=True, repr=False)
class TransportOptions(Options):
    """Options of the connection, shared by all formats. A field has the option's name in snake case: ``o.user``.

    :ivar url: servers as given, each with its scheme in lower case
    """

    url: tuple[str, ...] = option(
        "URLs", urls, (DEFAULT_SERVER,), CONNECT,
        "Servers, separated by commas. The scheme picks the middleware: `nats`, `tls`, `mlp` "
        "(`mlp://host:9999/stream`), `tango` (`tango://lab`, with `log`), `oz`, `zmq` (a name server, or a "
        "program: `oz://host:5557?mode=direct`), `memory`. The [environment](configuration.md#where-nats-is) "
        "can set the default.", shown=DEFAULT_SERVER, alias="servers",
    )  # fmt: skip
    credentials: str | None = option(
        "path", file_path, None, CONNECT,
        "File with JWT and nkey seed, on every executor.", secret=True, scope=NATS,
    )  # fmt: skip
    nkey_seed: str | None = option(
        "path", file_path, None, CONNECT, "File with an nkey seed, on every executor.", secret=True, scope=NATS
    )
    user: str | None = option("text", text, None, CONNECT, "User name.", secret=True)
    password: str | None = option("text", text, None, CONNECT, "Password of `user`.", secret=True)
    token: str | None = option("text", text, None, CONNECT, "Authentication token.", secret=True, scope=NATS)
    tls_ca: str | None = option(
        "path", file_path, None, CONNECT,
        "CA certificates.", scope=NATS,
    )  # fmt: skip
    tls_cert: str | None = option(
        "path", file_path, None, CONNECT, "Client certificate; goes with `tlsKey`.", scope=NATS
    )
    tls_key: str | None = option("path", file_path, None, CONNECT, "Private key of `tlsCert`.", secret=True, scope=NATS)
    tls_handshake_first: bool = option(
        "boolean", boolean, False, CONNECT,
        "For a server with `handshake_first`.", scope=NATS,
    )  # fmt: skip
    connect_timeout: float = option(
        "duration", duration, 5.0, CONNECT,
        "Longest wait for a connection, or for an answer about a stream.", shown="5s", scope=STORED,
    )  # fmt: skip
    js_domain: str | None = option(
        "text", single_token, None, CONNECT,
        "JetStream domain of the streams.",
        shown="that of the server", scope=NATS,
    )  # fmt: skip
    js_api_prefix: str | None = option(
        "subject", subject_prefix, None, CONNECT,
        "Prefix of JetStream requests, where the account imports the API of another: `JS.acme`.",
        shown="`$JS.API`", scope=NATS,
    )  # fmt: skip
    curve_server_key: str | None = option(
        "Z85 key", text, None, CONNECT, "Public key of the broker (CURVE).", scope=MALAMUTE
    )
    curve_public_key: str | None = option(
        "Z85 key", text, None, CONNECT,
        "Public key of the client, with `curveSecretKey`.", shown="a new one", scope=MALAMUTE,
    )  # fmt: skip
    curve_secret_key: str | None = option(
        "Z85 key", text, None, CONNECT, "Secret key of `curvePublicKey`.", secret=True, scope=MALAMUTE
    )
    bridge: str | None = option(
        ", ".join(f"`{name}`" for name in sorted(MIDDLEWARES)), _bridge, None, CONNECT,
        "Middleware of a `transport`; or the name of an [installed](../writing-a-bridge.md) one.",
        shown="by the scheme of `url`",
    )  # fmt: skip
    transport: str | None = option(
        "text", text, None, CONNECT,
        "Transport in a `mama.properties` file: its lines `mama.<bridge>.transport.<transport>.<option>` set options.",
    )  # fmt: skip
    properties: str | None = option(
        "path", text, None, CONNECT,
        "The `mama.properties` file, on the driver; without `transport` it only sets names and numbers of fields of "
        "source records.", shown="first one along `WOMBAT_PATH`",
    )  # fmt: skip

    discovery_topic: str = option(
        "text", topic_name, "_MAMA_SOURCE_DISCOVERY", DISCOVERY,
        "Topic below which sources announce themselves.", shown="`_MAMA_SOURCE_DISCOVERY`", scope=_ANNOUNCED,
    )  # fmt: skip
    sources_stream: str = option(
        "text", text, "MAMA_SOURCES", DISCOVERY,
        "Stream with the current sources.", shown="`MAMA_SOURCES`", scope=_ANNOUNCED,
    )  # fmt: skip
    events_stream: str = option(
        "text", text, "MAMA_EVENTS", DISCOVERY,
        "Stream with the changes.",
        shown="`MAMA_EVENTS`; Malamute: `_MAMA_EVENTS`", scope=_ANNOUNCED,
    )  # fmt: skip
    advisories_stream: str = option(
        "text", text, "MAMA_ADVISORIES", DISCOVERY,
        "Stream with advisories about consumers.",
        shown="`MAMA_ADVISORIES`", scope=replace(_ANNOUNCED, bridges=("nats",)),
    )  # fmt: skip

    @property
    def bridge_name(self) -> str:
        """The bridge that is named, or that the scheme of the URL picks."""
        return self.bridge or middleware_of(self.url).name

    @property
    def middleware(self) -> Middleware:
        """The one of :attr:`bridge_name`.

        :raises ConfigError: this machine lacks its package
        """
        return middleware_of(self.url, self.bridge)

    @property
    def bridges(self) -> frozenset[str]:
        return frozenset({self.bridge_name})

    def _cross_check(self, given: Collection[str]) -> None:
        require((self.tls_cert is None) == (self.tls_key is None), "options tlsCert and tlsKey go together")
        require(
            (self.curve_public_key is None) == (self.curve_secret_key is None),
            "options curvePublicKey and curveSecretKey go together",
        )
        require(
            self.curve_public_key is None or self.curve_server_key is not None,
            "option curvePublicKey needs curveServerKey",
        )
        require((self.password is None) or (self.user is not None), "option password needs user")
        ways = [n for n in ("credentials", "nkey_seed", "user", "token") if getattr(self, n) is not None]
        require(len(ways) < 2, f"options {' and '.join(map(camel, ways))} exclude each other: give one way to log in")
        require(
            self.js_domain is None or self.js_api_prefix is None,
            "options jsDomain and jsApiPrefix exclude each other: a domain has a prefix of its own",
        )
        by_url = middleware_of(self.url).name
        require(
            "url" not in given or self.bridge in (None, by_url),
            f"option bridge={self.bridge} does not go with the url, which is of {by_url}",
        )

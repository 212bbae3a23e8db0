"""Settings of a connection to NATS and of publishing over it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Self
from urllib.parse import ParseResult, SplitResult, unquote, urlsplit

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import redact_url
from mama_spark.options import ReadOptions, SinkOptions, TransportOptions
from mama_spark.options.stream_names import StreamRange
from mama_spark.options.transport import NATS_CONNECTION
from mama_spark.options.urls import DEFAULT_SERVER, with_scheme

AckMode = Literal["auto", "message", "batch", "none"]
_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_handshake_first")
_PUBLISHING = (
    *("stream", "create_stream", "streams", "grow_streams", "ack_mode", "dedup", "wait_timeout", "retry_deadline"),
    *("max_in_flight", "exactly_once", "batches_stream", "bucket"),
)
#: Prefix of the subjects of JetStream API requests, in the account and domain of the user.
DEFAULT_API_PREFIX = "$JS.API."
_SECRET = frozenset({"credentials", "nkey_seed", "user", "password", "token", "tls_key"})


@dataclass(frozen=True, slots=True, repr=False)
class NatsSettings:
    """Connection and publishing options; all times in seconds.

    :param servers: URLs of servers of one cluster
    :param credentials: path of a ``.creds`` file
    :param nkey_seed: path of a file with an nkey seed
    :param tls_ca: path of the CA certificates in PEM; ``tls_cert`` and ``tls_key``: certificate and key of the client
    :param tls_handshake_first: TLS begins before the server's greeting
    :param js_domain: the JetStream domain that holds the streams; None = that of the server
    :param js_api_prefix: API prefix instead of ``$JS.API``, where the account imports the API of another account
    :param name: name of the connection in the server's monitoring
    :param stream: the stream that must take all messages; None = found from the topics
    :param streams: the stream set that all topics are spread over, instead of ``stream``
    :param grow_streams: the set may have been a smaller one
    :param dedup: messages carry ids, and the stream drops duplicates
    :param ordered: keep the order of the messages over resends
    :param wait_timeout: seconds for which the publisher waits for an acknowledgement
    :param retry_deadline: of the publisher: resends end that long after the first send; of a reader: a question is
        asked again for that long
    :param exactly_once: stored rows are found without the ids that the server remembers
    :param batches_stream: stream that keeps the markers of batches
    :param bucket: bucket whose keys the messages change
    """

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    credentials: str | None = None
    nkey_seed: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_handshake_first: bool = False
    js_domain: str | None = None
    js_api_prefix: str | None = None
    name: str = "mama-spark"
    stream: str | None = None
    create_stream: bool = False
    streams: StreamRange | None = None
    grow_streams: bool = False
    ack_mode: AckMode = "auto"
    dedup: bool = True
    ordered: bool = False
    wait_timeout: float = 5.0
    retry_deadline: float = 30.0
    connect_timeout: float = 5.0
    max_in_flight: int = 4096
    exactly_once: bool = False
    batches_stream: str = "MAMA_BATCHES"
    bucket: str | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("no NATS server is named")
        if self.ack_mode not in ("auto", "message", "batch", "none"):
            raise ConfigError(f"ackMode must be auto, message, batch or none, got {self.ack_mode!r}")
        if self.js_domain is not None and self.js_api_prefix is not None:
            raise ConfigError("jsDomain and jsApiPrefix exclude each other: a domain has a prefix of its own")
        if self.ack_mode == "none" and self.ordered:
            raise ConfigError("order=partition needs acknowledgements: it does not go with ackMode=none")

    @classmethod
    def from_options(cls, o: TransportOptions) -> Self:
        """Settings from the options of a transport; with publishing, from those of a sink."""
        names, more = [*NATS_CONNECTION, "connect_timeout"], dict[str, Any]()
        if isinstance(o, ReadOptions):
            more["retry_deadline"] = o.wait_timeout
        elif isinstance(o, SinkOptions):
            names += _PUBLISHING
            more["ordered"] = o.order == "partition"
            if o.bucket is not None:  # acknowledgements of batches bring no revisions
                names.remove("ack_mode")
                more["ack_mode"] = "message"
        return cls(servers=o.url, **{name: getattr(o, name) for name in names}, **more)

    def __repr__(self) -> str:
        shown = []
        for f in fields(self):
            value: Any = getattr(self, f.name)
            if value == f.default:
                continue
            if f.name in _SECRET:
                value = "<hidden>"
            elif f.name == "servers":
                value = ",".join(self.shown_servers)
            shown.append(f"{f.name}={value!r}")
        return f"NatsSettings({', '.join(shown)})"

    @property
    def shown_servers(self) -> tuple[str, ...]:
        return tuple(redact_url(url, mask="") for url in self.servers)

    @property
    def api_prefix(self) -> str:
        """Prefix of the subjects of JetStream API requests, with its trailing dot."""
        if self.js_domain is not None:
            return f"$JS.{self.js_domain}.API."
        return DEFAULT_API_PREFIX if self.js_api_prefix is None else f"{self.js_api_prefix}."

    @property
    def wants_tls(self) -> bool:
        """Whether a URL or an option asks for TLS, which then all servers must have."""
        return any(getattr(self, name) for name in _TLS) or any(
            with_scheme(url.strip()).startswith("tls:") for url in self.servers
        )

    @property
    def login_of_urls(self) -> tuple[str, str | None] | None:
        """User and password (None: the first is a token), percent-decoded, that all URLs with a login have in common;
        None if they have none or several."""
        try:
            parts = [urlsplit(with_scheme(url.strip())) for url in self.servers]
        except ValueError:  # the client reports it when it connects
            return None
        found = {(part.username, part.password) for part in parts if part.username}
        if len(found) != 1:
            return None
        user, password = found.pop()
        return unquote(user or ""), None if password is None else unquote(password)

    @property
    def connection_key(self) -> tuple[object, ...]:
        """Key by which transports share connections."""
        return (
            *(getattr(self, name) for name in NATS_CONNECTION),
            *(self.servers, self.name),
        )


def shown_server(url: SplitResult | ParseResult | None) -> str:
    """Host and port."""
    return "nowhere" if url is None else redact_url(url.netloc, mask="")

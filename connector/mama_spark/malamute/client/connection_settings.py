"""Connection settings of a client: URLs, login, keys and times. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import redact_url

from ..protocol.curve_keys import check_curve_keys
from ..protocol.extensions import Feature

PORT = 9999
#: Features that mama-spark's own clients announce.
FEATURES = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.CONFIRM | Feature.HEADERS | Feature.SENDING


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionSettings:
    """The connection of a client; times in seconds.

    :param urls: ``mlp://host:port`` (default port 9999); after a lost connection the next one is tried
    :param address: address of the client; the broker keeps a mailbox for it. Empty = anonymous
    :param user: user of a PLAIN login, with ``password``
    :param curve_server_key: the broker's public key (Z85, 40 characters): CURVE. Without a key pair of its own
        (``curve_public_key``, ``curve_secret_key``) the client generates one
    :param features: announced to the broker; None = none, as the C client
    :param ping: interval of PINGs, as the C client
    :param silence: time without input after which the connection is replaced
    :param high_water: messages of any size that ZeroMQ may queue in each direction: keep it low
    """

    urls: tuple[str, ...] = ("mlp://127.0.0.1:9999",)
    address: str = ""
    user: str | None = None
    password: str | None = None
    curve_server_key: str | None = None
    curve_public_key: str | None = None
    curve_secret_key: str | None = None
    features: Feature | None = FEATURES
    ping: float = 1.0
    silence: float = 4.0
    high_water: int = 100

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("no broker is named")
        for url in self.urls:
            endpoint(url)
        if (self.user is None) != (self.password is None):
            raise ConfigError("a PLAIN login needs user and password")
        if "" in (self.user, self.password) or any(
            len((text or "").encode()) > 255 for text in (self.user, self.password)
        ):
            raise ConfigError("user and password have 1 to 255 bytes")
        keys = (self.curve_server_key, self.curve_public_key, self.curve_secret_key)
        if any(keys) and self.curve_server_key is None:
            raise ConfigError("CURVE needs the broker's public key")
        if (self.curve_public_key is None) != (self.curve_secret_key is None):
            raise ConfigError("the public and the secret CURVE key go together")
        if self.user is not None and self.curve_server_key is not None:
            raise ConfigError("PLAIN and CURVE exclude each other")
        check_curve_keys(keys)


def endpoint(url: str) -> str:
    """The ZeroMQ endpoint of a URL: ``mlp://host`` and ``mlp://host:9999/stream`` are ``tcp://host:9999``.

    :raises ConfigError: the URL names no broker
    """
    scheme, sep, rest = url.strip().partition("://")
    if sep and scheme.lower() in ("ipc", "inproc") and rest:
        return f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"the url of a broker is mlp://host:port, not {redact_url(url)}") from None
    if scheme.lower() not in ("mlp", "tcp") or not host:
        raise ConfigError("the url of a broker is mlp://host:port")
    if "@" in url:
        raise ConfigError("a login stands in user and password, not in the url")
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port or PORT}"

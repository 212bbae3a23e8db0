"""The connection of a peer with its network, by URLs or by a transport of a ``mama.properties`` file. Pure.

OpenMAMA's ZeroMQ bridges read ``mama.zmq.transport.<name>.*`` and nothing else. ``oz`` joins the naming service unless
``is_naming`` is 0; up to three name servers are ``naming.subscribe_address`` and ``naming.subscribe_port``, both with
``_0``, ``_1``, ``_2`` behind them (the first may be without, and has defaults; the others need both). Direct mode, and
``zmq`` always, takes ``outgoing_url`` and ``incoming_url``, with or without ``_0``, ``_1``, …: the first number that is
missing ends the list. Where a URL holds ``*`` the socket binds, else it connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from mama_spark.contracts.errors import ConfigError

from .frames import FRAMINGS, OZ, Framing

NAMING_PORT, DATA_PORT, REQUEST_PORT = 5756, 5557, 5556
NAMING, DIRECT = "naming", "direct"
_KEYS = ("mode", "bind", "incoming", "bind_incoming", "publish_address", "allow_requests")


class Endpoint(NamedTuple):
    """The address of a socket, ``tcp://host:port``, which it binds, or else connects to."""

    address: str
    bind: bool = False

    @classmethod
    def of_openmama(cls, url: str) -> Self:
        return cls(url, url.startswith("tcp:") and "*" in url)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Times in seconds.

    :ivar naming: addresses of the name servers, ``tcp://host:5756``; empty: direct mode
    :ivar publish_address: naming: interface that the sending socket binds; None: the one that the name server is
        reached by, as it sees itself
    :ivar outgoing: direct: endpoints of the sending socket
    :ivar incoming: direct: endpoints of the receiving socket; naming: ignored
    :ivar receive: has a receiving socket at all
    :ivar high_water_mark: messages that wait for one reader before the socket takes no more
    :ivar linger: longest wait at the end until everything is written
    :ivar allow_requests: send requests also where real programs of the framing end with a fault at one
    :ivar heartbeat: a reader whose process stands still for so long is disconnected, and no longer holds the others;
        None: it holds them for as long as it likes
    :ivar program: name of this peer, for others
    """

    framing: Framing
    naming: tuple[str, ...] = ()
    publish_address: str | None = None
    outgoing: tuple[Endpoint, ...] = ()
    incoming: tuple[Endpoint, ...] = ()
    receive: bool = True
    high_water_mark: int = 10_000
    linger: float = 30.0
    join_timeout: float = 10.0
    allow_requests: bool = False
    heartbeat: float | None = None
    program: str = "mama-spark"

    def __post_init__(self) -> None:
        if self.naming and self.framing.name != "oz":
            raise ConfigError(f"the framing {self.framing.name} has no naming service: give endpoints")
        if not self.naming and not self.outgoing and not self.incoming:
            raise ConfigError("a peer needs a name server, or an endpoint")
        if self.high_water_mark < 1:
            raise ConfigError("the high-water mark of a peer is at least 1: without one, memory has no bound")

    def without_receiving(self) -> Self:
        return replace(self, receive=False, incoming=())

    @classmethod
    def from_urls(cls, urls: Sequence[str], *, receiver: bool = False) -> Self:
        """Settings from the servers of the option ``url``::

            oz://host:5756                            naming (several name servers: several URLs)
            oz://host:5756?publish_address=10.0.0.7   naming; where others connect to this peer
            oz://host:5557?mode=direct                connects its sending socket there; a receiver its receiving one
            oz://host:5557?mode=direct&bind=true      binds there instead
            oz://host:5557?mode=direct&incoming=tcp://host:5556     the other socket, too; repeatable; binds at ``*``,
                                                      and with ``&bind_incoming=true`` anywhere
            zmq://host:5557                           always direct
            zmq://host:5557?allow_requests=true       programs there are repaired: requests do not end them

        :param receiver: the first socket of direct mode is the receiving one, the other (``incoming``) the sending one
        :raises ConfigError: something is wrong with them
        """
        parts = [urlsplit(url) for url in urls]
        framings = {part.scheme for part in parts}
        if len(framings) != 1 or not framings <= FRAMINGS.keys():
            raise ConfigError(f"option url: servers of one framing are needed, of {' or '.join(sorted(FRAMINGS))}")
        framing = FRAMINGS[framings.pop()]
        queries = [_query(part) for part in parts]
        modes = {_one(query, "mode") or (NAMING if framing.name == "oz" else DIRECT) for query in queries}
        if len(modes) != 1 or not modes <= {NAMING, DIRECT}:
            raise ConfigError(f"option url: mode is {NAMING} or {DIRECT}, the same for all servers")
        allowed = any(_flag(query, "allow_requests") for query in queries)
        if modes == {DIRECT}:
            first, second = _sockets(parts, queries)
            return (
                cls(framing, outgoing=second, incoming=first, allow_requests=allowed)
                if receiver
                else cls(framing, outgoing=first, incoming=second, allow_requests=allowed)
            )
        if len(parts) > 3:
            raise ConfigError("option url: OpenMAMA programs know three name servers at most")
        if any(key in query for query in queries for key in ("bind", "incoming", "bind_incoming")):
            raise ConfigError("option url: bind and incoming are for mode=direct; with naming, peers find each other")
        published = {address for query in queries if (address := _one(query, "publish_address"))}
        if len(published) > 1:
            raise ConfigError("option url: one publish_address is enough")
        addresses = tuple(_address(part, NAMING_PORT) for part in parts)
        return cls(framing, addresses, published.pop() if published else None)


def _sockets(
    parts: list[SplitResult], queries: list[dict[str, list[str]]]
) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    first: list[Endpoint] = []
    second: list[Endpoint] = []
    for part, query in zip(parts, queries, strict=True):
        if "publish_address" in query:
            raise ConfigError("option url: publish_address is for naming; in direct mode the URL says the address")
        address = _address(part, DATA_PORT)
        bind = _flag(query, "bind")
        first.append(Endpoint(address, "*" in address if bind is None else bind))
        bind = _flag(query, "bind_incoming")
        others = [Endpoint.of_openmama(url) for url in query.get("incoming", ())]
        second += [one if bind is None else one._replace(bind=bind) for one in others]
    return tuple(first), tuple(second)


def _address(part: SplitResult, port: int) -> str:
    if part.path.strip("/") or part.fragment or not part.hostname:
        raise ConfigError(f"option url: {part.scheme}://host:port is needed, and no path")
    host = f"[{part.hostname}]" if ":" in part.hostname else part.hostname
    return f"tcp://{host}:{part.port or port}"


def _query(part: SplitResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in parse_qsl(part.query, keep_blank_values=True):
        if key not in _KEYS:
            raise ConfigError(f"option url: {key!r} is not known behind the ?; known are {', '.join(_KEYS)}")
        if key == "incoming" and not value.startswith("tcp://"):
            raise ConfigError(f"option url: incoming is tcp://host:port, got {value!r}")
        found.setdefault(key, []).append(value)
    return found


def _one(query: dict[str, list[str]], key: str) -> str | None:
    values: Iterable[str] = query.get(key, ())
    return next(iter(values), None)


def _flag(query: dict[str, list[str]], key: str) -> bool | None:
    value = _one(query, key)
    if value not in (None, "true", "false"):
        raise ConfigError(f"option url: {key} is true or false, got {value!r}")
    return None if value is None else value == "true"


PREFIX = "mama.zmq.transport"
_OUTGOING, _INCOMING = "outgoing_url", "incoming_url"
#: Of the transport that is called ``pub``, and of all others.
_DEFAULTS = {
    True: {_OUTGOING: f"tcp://*:{REQUEST_PORT}", _INCOMING: f"tcp://127.0.0.1:{DATA_PORT}"},
    False: {_OUTGOING: f"tcp://*:{DATA_PORT}", _INCOMING: f"tcp://127.0.0.1:{REQUEST_PORT}"},
}
_MOST_SERVERS = 3
_NUMBER = re.compile(r"\s*[+-]?\d+")


def property_urls(
    properties: Mapping[str, str], name: str, framing: str | None, *, receiver: bool = False
) -> list[str]:
    """URLs for :meth:`~mama_spark.openmama.wire.settings.PeerSettings.from_urls` that make the same peer.

    :param framing: ``oz`` or ``zmq``: which of the bridges the network speaks; None: ``oz``
    :param receiver: as ``from_urls`` is called
    :raises ConfigError: an endpoint is no ``tcp://host:port``
    """
    framing = OZ.name if framing is None else framing
    if framing not in FRAMINGS:
        raise ConfigError(f"framing must be one of {', '.join(sorted(FRAMINGS))}, got {framing!r}")
    if framing == "oz" and _number(_get(properties, name, "is_naming"), 1):
        published = _get(properties, name, "publish_address")
        query = f"?{urlencode({'publish_address': published})}" if published else ""
        return [f"oz://{address}{query}" for address in naming_addresses(properties, name)]
    outgoing, incoming = (_endpoints(properties, name, which) for which in (_OUTGOING, _INCOMING))
    first, second = (incoming, outgoing) if receiver else (outgoing, incoming)
    return [_direct_url(framing, endpoint, () if n else second) for n, endpoint in enumerate(first)]


def naming_addresses(properties: Mapping[str, str], name: str) -> list[str]:
    def value(key: str) -> str | None:
        return _get(properties, name, f"naming.{key}")

    address = value("subscribe_address") or value("subscribe_address_0") or "127.0.0.1"
    port = _number(value("subscribe_port"), 0) or _number(value("subscribe_port_0"), NAMING_PORT)
    found = [f"{address}:{port}"]
    for n in range(1, _MOST_SERVERS):
        more, at = value(f"subscribe_address_{n}"), _number(value(f"subscribe_port_{n}"), 0)
        if more and at:
            found.append(f"{more}:{at}")
    return found


def _endpoints(properties: Mapping[str, str], name: str, which: str) -> list[Endpoint]:
    urls = [_get(properties, name, which) or _DEFAULTS[name == "pub"][which]]
    number = 0
    while (url := _get(properties, name, f"{which}_{number}")) is not None:
        urls[number:] = [url]
        number += 1
    return [Endpoint.of_openmama(url) for url in urls]


def _direct_url(framing: str, endpoint: Endpoint, others: list[Endpoint] | tuple[()]) -> str:
    parts = urlsplit(endpoint.address)
    if parts.scheme != "tcp" or not parts.netloc:
        raise ConfigError(f"{endpoint.address!r}: only endpoints tcp://host:port can be used")
    query = {"mode": ["direct"], "incoming": [other.address for other in others]}
    return f"{framing}://{parts.netloc}?{urlencode(query, doseq=True)}"


def _get(properties: Mapping[str, str], name: str, key: str) -> str | None:
    return properties.get(f"{PREFIX}.{name}.{key}")


def _number(text: str | None, default: int) -> int:
    """The number that C's atoi reads; 0 for a negative one."""
    if text is None:
        return default
    found = _NUMBER.match(text)
    return max(0, int(found[0])) if found else 0

"""URLs of a transport of a ``mama.properties`` file: the endpoints that OpenMAMA's ZeroMQ bridges take from it. Pure.

Both bridges read ``mama.zmq.transport.<name>.*`` and nothing else. ``oz`` joins the naming service unless ``is_naming``
is 0; up to three name servers are ``naming.subscribe_address`` and ``naming.subscribe_port``, both with ``_0``, ``_1``,
``_2`` behind them (the first may be without, and has defaults; the others need both). Direct mode, and ``zmq`` always,
takes ``outgoing_url`` and ``incoming_url``, with or without ``_0``, ``_1``, …: the first number that is missing ends
the list. Where a URL holds ``*`` the socket binds, else it connects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from mama_spark.contracts.errors import ConfigError

from ..protocol.framings import FRAMINGS
from .settings import DATA_PORT, NAMING_PORT, REQUEST_PORT, Endpoint

PREFIX = "mama.zmq.transport"
_OUTGOING, _INCOMING = "outgoing_url", "incoming_url"
#: Of the transport that is called ``pub``, and of all others.
_DEFAULTS = {
    True: {_OUTGOING: f"tcp://*:{REQUEST_PORT}", _INCOMING: f"tcp://127.0.0.1:{DATA_PORT}"},
    False: {_OUTGOING: f"tcp://*:{DATA_PORT}", _INCOMING: f"tcp://127.0.0.1:{REQUEST_PORT}"},
}
_MOST_SERVERS = 3
_NUMBER = re.compile(r"\s*[+-]?\d+")


def property_urls(properties: Mapping[str, str], name: str, framing: str, *, receiver: bool = False) -> list[str]:
    """URLs for :meth:`~mama_spark.openmama.wire.peer.settings.PeerSettings.from_urls` that make the same peer.

    :param properties: of the file, by key
    :param framing: ``oz`` or ``zmq``: which of the bridges the network speaks; the file does not say it
    :param receiver: as ``from_urls`` is called
    :raises ConfigError: an endpoint is no ``tcp://host:port``
    """
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
    """``host:port`` of the name servers."""

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
    """Those of the outgoing or the incoming socket."""
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
    """As C's atoi reads it; negative ones as 0."""
    if text is None:
        return default
    found = _NUMBER.match(text)
    return max(0, int(found[0])) if found else 0

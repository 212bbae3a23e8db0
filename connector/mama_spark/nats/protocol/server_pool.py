"""Chooses the next server to connect to, and the time. Pure.

Servers of the options come first, in any order; others are learned from the cluster. After a round over all of them
without a connection, the next one waits.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded when it is needed first, which fails where no file can be opened any more
import ipaddress
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import unquote, urlsplit

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.redaction import redact_url
from mama_spark.options.urls import with_scheme

_PORT = 4222
_REMEMBERED = 60.0  #: seconds
_GREETING = 1.0  #: seconds that a server has to greet, at least: to look up its name, and three ways to a far one
_LEARNED = 64  #: servers that a cluster announced; where pods come and go, addresses do not come back
#: Between two rounds over all servers; without a random part, all clients of a server would come back at once. Short,
#: because leases must be renewed in the seconds that a server is there.
BETWEEN_ROUNDS = Backoff(0.1, 0.5, jitter=0.5)


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server.

    :ivar tls_name: host that its certificate must name
    :ivar login: login of its URL: user and password (None: the first is a token), percent-decoded
    :ivar learned: a cluster announced it
    """

    host: str
    port: int
    tls_name: str
    login: tuple[str, str | None] | None = None
    learned: bool = False

    @classmethod
    def of(cls, url: str) -> Self:
        """The server of a URL. ConfigError: not a URL of a server that is reached by TCP."""
        try:
            parts = urlsplit(with_scheme(url.strip()))
            host, port = parts.hostname, parts.port or _PORT
            (host or "").encode("idna")  # as whoever looks it up will
        except ValueError as e:
            raise ConfigError(f"{redact_url(url)} is no URL of a server: {e}") from None
        if parts.scheme not in ("nats", "tls") or not host:
            raise ConfigError(f"{redact_url(url)} is not nats://host:port or tls://host:port (websockets are not used)")
        login = None
        if parts.username:
            login = unquote(parts.username), None if parts.password is None else unquote(parts.password)
        return cls(host, port, host, login)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SilentServers:
    """Servers that did not answer in time: each is tried last for :data:`_REMEMBERED`, or until it answers.
    ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}  # by address

    def __contains__(self, server: Server) -> bool:
        since = self._since.get(server.address)
        return since is not None and self._clock() - since < _REMEMBERED

    def add(self, server: Server) -> None:
        now = self._clock()
        self._since = {one: since for one, since in list(self._since.items()) if now - since < _REMEMBERED}
        self._since[server.address] = now

    def discard(self, server: Server) -> None:
        self._since.pop(server.address, None)

    def clear(self) -> None:
        self._since.clear()


class ServerPool:
    """The servers of one cluster.

    :param chance: source of the order and of the random part of delays
    """

    def __init__(
        self, urls: Sequence[str], chance: random.Random, silent: SilentServers, only: Server | None = None
    ) -> None:
        self._chance, self._silent, self._only = chance, silent, only
        self._servers = [Server.of(url) for url in urls] if only is None else [only]
        self._given = len(self._servers)
        chance.shuffle(self._servers)
        self.current = self._servers[0]
        self._tried = self._rounds = 0  # servers of this round, and rounds, since a connection came about

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def servers(self) -> list[Server]:
        """All, in the order in which they will be tried, silent ones aside."""
        return list(self._servers)

    def next(self) -> tuple[Server, float]:
        """The server to try, and the seconds to wait before."""
        delay = 0.0
        if self._tried >= len(self._servers):
            delay = BETWEEN_ROUNDS.delay(self._rounds, self._chance.random)
            self._tried, self._rounds = 0, self._rounds + 1
        untried = self._servers[: len(self._servers) - self._tried]
        self._tried += 1
        self.current = next((server for server in untried if server not in self._silent), untried[0])
        self._servers.remove(self.current)
        self._servers.append(self.current)
        return self.current, delay

    def times(self, within: float) -> tuple[float, float]:
        """Time limits in seconds of the present server, for its greeting and for the login, if a connection must be up
        ``within`` seconds: each server of the options has its turn in the first round, if that leaves a far one time to
        greet; a dead one leaves time for the others in all."""
        third = within / min(self._given, 3)
        return third if self._rounds else max(within / self._given, min(third, _GREETING)), third

    def silent(self) -> None:
        """Note that the current server did not answer in time."""
        self._silent.add(self.current)

    def connected(self) -> None:
        """Note that the current server has taken the login: the next failure is a new outage. It still counts in this
        round, so that connections that end at once are not made without a pause. After an outage of all servers, the
        others may be back, too."""
        if self._rounds > 1:  # a whole one has failed
            self._silent.clear()
        self._rounds = 0
        self._silent.discard(self.current)

    def learn(self, addresses: Sequence[str]) -> bool:
        """Add servers that the cluster announces; true if there are new ones. An empty list says nothing.

        A server that is not announced any more is kept, because it may be back when the others are down, but at most
        :data:`_LEARNED` of these: the oldest go. A bare address must have the certificate, and gets the login, of the
        current server.
        """
        if self._only is not None:
            return False
        known = {server.address for server in self._servers}
        new = [s for s in map(self._learned, dict.fromkeys(addresses)) if s is not None and s.address not in known]
        self._chance.shuffle(new)
        kept = [server for server in self._servers if server.learned][: max(0, _LEARNED - len(new))]
        kept += [server for server in self._servers if not server.learned]
        self._servers = new + [
            s for s in self._servers if s in kept or s == self.current
        ]  # the current one is the last
        return bool(new)

    def at(self, address: str) -> Server | None:
        """The server of the cluster at this address, host and port; None = no address."""
        return next((server for server in self._servers if server.address == address), self._learned(address))

    def _learned(self, address: str) -> Server | None:
        try:
            server = Server.of(address)
        except ConfigError:
            return None
        name = self.current.tls_name if _is_ip(server.host) and not _is_ip(self.current.tls_name) else server.tls_name
        return replace(server, tls_name=name, login=self.current.login, learned=True)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True

"""Events of :class:`~.client.ClientProtocol`, and the INFO of servers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from . import parser
from .acks import AckColumns
from .parser import Frame, ProtocolError

_DEFAULT_MAX_PAYLOAD = 1024 * 1024


class Cause(Enum):
    """Causes of a lost connection that are treated differently."""

    CLOSED = "closed"  #: by the other end, or the network
    NOBODY = "nobody"  #: nobody listens: no address takes connections
    REFUSED = "refused"  #: the server does not take the credentials (any more), or they cannot be read
    NO_TLS = "no TLS"  #: it was asked for, and is not offered; or the certificate is wrong
    SERVER = "server"  #: the server says why it closes
    STALE = "stale"  #: we left it because of its silence
    TIMEOUT = "timeout"  #: no connection came about in time
    PROTOCOL = "protocol"  #: the bytes are not NATS


#: Beginnings, in lower case, of the texts of ``-ERR`` behind which the server closes the connection. After others it
#: goes on, or closes without our help.
FATAL: Mapping[str, Cause] = {
    "authorization violation": Cause.REFUSED,
    "user authentication expired": Cause.REFUSED,
    "user authentication revoked": Cause.REFUSED,
    "account authentication expired": Cause.REFUSED,
    "authentication timeout": Cause.SERVER,
    "stale connection": Cause.SERVER,
    "maximum connections exceeded": Cause.SERVER,
    "maximum account active connections exceeded": Cause.SERVER,
    "connection throttling is active": Cause.SERVER,
    "maximum payload violation": Cause.SERVER,
    "maximum control line exceeded": Cause.SERVER,
    "unknown protocol operation": Cause.SERVER,
    "secure connection - tls required": Cause.SERVER,
    "failed account registration": Cause.SERVER,
    "attempted to connect to": Cause.SERVER,
    "invalid client protocol": Cause.SERVER,
    "slow consumer": Cause.SERVER,
}

#: The same, behind which the connection goes on without the subscription that was one too many.
TOO_MANY = "maximum subscriptions exceeded"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Contents of a server's INFO.

    :ivar id: id of this process of the server
    :ivar address: host and port that it listens on
    :ivar nonce: nonce to be signed in a login with a key
    :ivar connect_urls: host and port of all servers of the cluster
    :ivar clustered: it has others beside it, of which one address may stand for all
    """

    name: str = ""
    version: str = ""
    max_payload: int = _DEFAULT_MAX_PAYLOAD
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    id: str = ""
    address: str = ""
    clustered: bool = False
    jetstream: bool = False

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self:
        """Read the INFO of a server. ProtocolError: a value has a wrong type."""
        urls = info.get("connect_urls") or []
        size = info.get("max_payload", _DEFAULT_MAX_PAYLOAD)
        texts = [info.get(key, "") for key in ("server_name", "version", "nonce", "server_id")]
        if not (isinstance(urls, list) and all(isinstance(text, str) for text in [*urls, *texts])):
            raise ProtocolError("INFO holds a value of a wrong type")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= parser.MAX_MESSAGE:
            raise ProtocolError(f"INFO has max_payload {str(size)[:20]}")
        flags = {name: info.get(name) is True for name in ("headers", "tls_required", "tls_available", "jetstream")}
        flags["clustered"] = bool(info.get("cluster"))
        name, version, nonce, server_id = texts
        address = f"{info.get('host')}:{info.get('port')}"
        return cls(
            name, version, size, nonce=nonce, connect_urls=tuple(urls), id=server_id, address=address, **flags
        )  # fmt: skip

    @property
    def alone(self) -> bool:
        """Whether it is in no cluster, and so stores only in its own folder: JetStream is on, and its name is its id,
        as where none is configured, which nats-server refuses in a cluster."""
        return self.jetstream and self.name == self.id and not self.clustered

    @property
    def version_numbers(self) -> tuple[int, int]:
        """Major and minor version; zeros where they cannot be read."""
        major, _, rest = self.version.partition(".")
        minor = rest.partition(".")[0]
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


@dataclass(frozen=True, slots=True)
class Write:
    data: bytes


@dataclass(frozen=True, slots=True)
class StartTls:
    """The caller shakes hands, then calls :meth:`ClientProtocol.secured`."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The server has taken the login; earlier subscriptions are made again."""

    info: ServerInfo


@dataclass(frozen=True, slots=True)
class InfoChanged:
    """The server tells of its cluster, or that it will close its connections (``ldm``), which asks for no action: it
    serves this one until it closes it, and then :class:`Lost` leads to another server."""

    info: ServerInfo


@dataclass(frozen=True, slots=True)
class Acked:
    """Acknowledgements of the inbox, in bulk."""

    columns: list[AckColumns]


@dataclass(frozen=True, slots=True)
class Received:
    """Any message that is not taken in bulk."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Ponged:
    """The server has read everything that was sent before a ping of :meth:`ClientProtocol.send_ping`."""

    number: int


@dataclass(frozen=True, slots=True)
class Denied:
    """A permission violation, or one subscription too many.

    :ivar kind: ``publish``, ``subscription`` or ``limit``
    """

    kind: str
    subject: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """Another error behind which the connection goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection has ended, or did not come about: the caller closes the socket."""

    cause: Cause
    text: str


Event = Write | StartTls | Connected | InfoChanged | Acked | Received | Ponged | Denied | Complaint | Lost
